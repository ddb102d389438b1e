// May this client publish there? Asked of the rules of the node that is asked.

import {api, el, heading, number, table} from "./base.js";
import {t} from "./language.js";

const labelled = (text, field) => el("label", {}, text + " ", field);
const action = el("select", {}, ...["publish", "subscribe", "group", "connect"].map((one) => el("option", {value: one}, t("action." + one))));
const fields = {
  client_id: el("input"), username: el("input"), address: el("input"), topic: el("input"), group: el("input"),
  qos: el("select", {}, ...[0, 1, 2].map((one) => el("option", {value: one}, String(one)))),
};
const retain = el("input", {type: "checkbox"});
const answer = el("p", {id: "rules-answer", role: "status"});
const shown = el("form", {class: "facts", onsubmit: (event) => {
  event.preventDefault();
  test();
}}, labelled(t("client_id"), fields.client_id), labelled(t("user"), fields.username), labelled(t("rules.address"), fields.address), labelled(t("rules.action"), action),
labelled(t("rules.topic"), fields.topic), labelled(t("rules.group"), fields.group), labelled("QoS", fields.qos), labelled(t("rules.retain"), retain), el("button", {}, t("rules.test")));

async function test() {
  const given = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value.trim()]).filter(([, value]) => value !== ""));
  try {
    const told = await api("/rules/test", {...given, action: action.value, retain: retain.checked});
    answer.className = told.allowed ? "ok" : "bad";
    answer.textContent = t(told.allowed ? "rules.allowed" : "rules.denied", {reason: told.reason}) + (told.username ? t("rules.user", {user: told.username}) : "");
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
}

const title = heading(t("rules.title"));
const said = el("p", {class: "faint"}, t("rules.note"));

export async function rules(seen, parameters) {
  if (parameters.client_id && !fields.client_id.value) fields.client_id.value = parameters.client_id;
  const told = await api("/rules");
  const list = told.file
    ? [el("p", {}, t("rules.default", {decision: t("decision." + told.default), file: told.file, total: number(told.total)})),
      table({rule: (one) => number(one.number), decision: (one) => el("span", {class: one.decision === "allow" ? "ok" : "bad"}, t("decision." + one.decision)),
        actions: (one) => one.actions.join(", "), for: (one) => Object.entries(one.names).map(([name, value]) => `${name}: ${value}`).join("; ") || t("rules.all"),
        applied: (one) => number(one.applied)}, told.rules)]
    : [el("p", {}, t("rules.nofile"))];
  return [title, said, shown, answer, heading(t("rules.list")), ...list];
}
