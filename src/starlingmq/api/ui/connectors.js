// Services outside the broker that nodes call: what they accepted, what failed, and a test of each.

import {age, ask, el, api, heading, missing, nodeColumn, number, table} from "./base.js";
import {t} from "./language.js";

const answer = el("p", {id: "connectors-answer", role: "status"});

async function test(one) {
  const values = {name: one.name, node: one.node};
  answer.className = "";
  answer.textContent = t("connectors.asking", values);
  try {
    const told = await ask("POST", "/api/v1/connectors/test", {}, {name: one.name, node: one.node});
    answer.className = told.accepted ? "ok" : "bad";
    answer.textContent = t(told.accepted ? "connectors.accepts" : "connectors.fails", {...values, ms: number(told.milliseconds), problem: told.problem});
  } catch (error) {
    answer.className = "bad";
    answer.textContent = error.message;
  }
}

const button = (one) => el("button", {class: "operates", onclick: () => test(one), "aria-label": t("connectors.test_of", {name: one.name})}, t("rules.test"));
const failed = (one) => el("span", {class: one.failing ? "bad" : ""}, number(one.failed));
const lastly = (time) => (time ? age(time) : t("never"));

export async function connectors() {
  const told = await api("/connectors");
  return [
    missing(told),
    heading(t("tab.connectors")),
    el("p", {class: "faint"}, t("connectors.note")),
    told.connectors.length
      ? table({connector: (one) => one.name, ...nodeColumn(told.connectors), address: (one) => one.address, accepted: (one) => number(one.accepted),
        failed, "accepted last": (one) => lastly(one.accepted_at), problem: (one) => (one.failing ? one.problem : ""), test: button}, told.connectors)
      : el("p", {}, t("connectors.none")),
    answer,
  ];
}
