// Bans: who is refused, by whom, for how long; to add and to lift.

import {api, ask, el, heading, missing, nodeColumn, number, table} from "./base.js";
import {t} from "./language.js";

const LASTS = {600: t("time.10min"), 3600: t("time.hour"), 86400: t("time.day"), 2592000: t("time.30days")};

const refused = el("p", {class: "bad", role: "alert"});
const kind = el("select", {"aria-label": t("bans.kind")}, ...["client", "user", "address"].map((one) => el("option", {value: one}, t("col." + one))));
const name = el("input", {placeholder: t("bans.what"), "aria-label": t("bans.name"), required: ""});
const seconds = el("select", {"aria-label": t("bans.duration")}, ...Object.entries(LASTS).map(([value, text]) => el("option", {value}, text)));
const reason = el("input", {placeholder: t("col.reason"), "aria-label": t("bans.reason"), maxlength: 200});
const form = el("form", {class: "tools operates", onsubmit: (event) => {
  event.preventDefault();
  change("POST", {}, {kind: kind.value, name: name.value, seconds: Number(seconds.value), ...(reason.value && {reason: reason.value})})
    .then((done) => { if (done) name.value = reason.value = ""; });
}}, kind, name, seconds, reason, el("button", {class: "bad"}, t("ban")));

let taken = null; // the name in the address of the page that the form has already

async function change(method, parameters, body) {
  refused.textContent = "";
  try {
    await ask(method, "/api/v1/bans", parameters, body);
    dispatchEvent(new Event("hashchange"));
    return true;
  } catch (error) {
    refused.textContent = error.message;
    return false;
  }
}

export async function bans(seen, parameters) {
  if (parameters.name !== undefined && parameters.name !== taken) [kind.value, name.value] = [parameters.kind ?? "client", (taken = parameters.name)];
  const told = await api("/bans");
  return [heading(t("tab.bans")), form, refused, missing(told),
    table({name: (one) => one.name, kind: (one) => t("col." + one.kind), ...nodeColumn(told.bans), "ends in (s)": (one) => number(one.seconds ?? 0),
      reason: (one) => one.reason, by: (one) => (t(one.everywhere ? "bans.operator" : "bans.node")),
      action: (one) => el("button", {class: "operates", onclick: () => change("DELETE", {kind: one.kind, name: one.name}), "aria-label": t("bans.lift_of", {name: one.name})}, t("bans.lift"))}, told.bans)];
}
