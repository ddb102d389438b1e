// Publish a message by hand.

import {ask, el, number} from "./base.js";
import {t} from "./language.js";

export function publishForm() {
  const topic = el("input", {placeholder: t("col.topic"), "aria-label": t("publish.topic"), required: ""});
  const payload = el("input", {placeholder: t("payload"), "aria-label": t("payload")});
  const qos = el("select", {"aria-label": "QoS"}, ...[0, 1, 2].map((one) => el("option", {value: one}, `QoS ${one}`)));
  const retain = el("input", {type: "checkbox"});
  const told = el("span", {id: "published", role: "status"});
  return el("form", {class: "tools operates", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const done = await ask("POST", "/api/v1/publish", {}, {topic: topic.value, payload: payload.value, qos: Number(qos.value), retain: retain.checked});
      told.className = "faint";
      told.textContent = t("publish.done", {count: number(done.receivers)});
    } catch (error) {
      told.className = "bad";
      told.textContent = error.message;
    }
  }}, topic, payload, qos, el("label", {}, retain, ` ${t("retain")}`), el("button", {}, t("publish")), told);
}
