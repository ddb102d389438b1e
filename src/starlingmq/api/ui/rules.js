// May this client publish there? Asked of the rules of the node that is asked.

import {api, el, heading} from "./base.js";

const labelled = (text, field) => el("label", {}, text + " ", field);
const action = el("select", {}, ...["publish", "subscribe", "group", "connect"].map((one) => el("option", {value: one}, one)));
const fields = {
  client_id: el("input"), username: el("input"), address: el("input"), topic: el("input"), group: el("input"),
  qos: el("select", {}, ...[0, 1, 2].map((one) => el("option", {value: one}, String(one)))),
};
const retain = el("input", {type: "checkbox"});
const answer = el("p", {id: "rules-answer", role: "status"});
const shown = el("form", {class: "facts", onsubmit: (event) => {
  event.preventDefault();
  test();
}}, labelled("Client id", fields.client_id), labelled("User", fields.username), labelled("Address", fields.address), labelled("Action", action),
labelled("Topic or filter", fields.topic), labelled("Group", fields.group), labelled("QoS", fields.qos), labelled("Retain", retain), el("button", {}, "Test"));

async function test() {
  const given = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value.trim()]).filter(([, value]) => value !== ""));
  try {
    const told = await api("/rules/test", {...given, action: action.value, retain: retain.checked});
    answer.className = told.allowed ? "ok" : "bad";
    answer.textContent = `${told.allowed ? "Allowed" : "Denied"}: ${told.reason}` + (told.username ? ` (user ${told.username})` : "");
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
}

const title = heading("May this client do that?");
const said = el("p", {class: "faint"}, "Empty user and address are those of the connected client. Hooks and the HTTP service of auth.http are not asked.");

export async function rules(seen, parameters) {
  if (parameters.client_id && !fields.client_id.value) fields.client_id.value = parameters.client_id;
  return [title, said, shown, answer];
}
