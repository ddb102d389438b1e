// Publish a message by hand.

import {ask, el, number} from "./base.js";

export function publishForm() {
  const topic = el("input", {placeholder: "topic", "aria-label": "Topic to publish to", required: ""});
  const payload = el("input", {placeholder: "payload", "aria-label": "Payload"});
  const qos = el("select", {"aria-label": "QoS"}, ...[0, 1, 2].map((one) => el("option", {value: one}, `QoS ${one}`)));
  const retain = el("input", {type: "checkbox"});
  const told = el("span", {id: "published", role: "status"});
  return el("form", {class: "tools", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const done = await ask("POST", "/api/v1/publish", {}, {topic: topic.value, payload: payload.value, qos: Number(qos.value), retain: retain.checked});
      told.className = "faint";
      told.textContent = `published to ${number(done.receivers)} receivers`;
    } catch (error) {
      told.className = "bad";
      told.textContent = error.message;
    }
  }}, topic, payload, qos, el("label", {}, retain, " retain"), el("button", {}, "Publish"), told);
}
