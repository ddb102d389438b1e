// Bans: who is refused, by whom, for how long; to add and to lift.

import {api, ask, el, heading, missing, nodeColumn, number, table} from "./base.js";

const LASTS = {600: "10 minutes", 3600: "1 hour", 86400: "1 day", 2592000: "30 days"};

const refused = el("p", {class: "bad", role: "alert"});
const kind = el("select", {"aria-label": "Kind"}, ...["client", "user", "address"].map((one) => el("option", {value: one}, one)));
const name = el("input", {placeholder: "client id, user or address", "aria-label": "Banned name", required: ""});
const seconds = el("select", {"aria-label": "Duration"}, ...Object.entries(LASTS).map(([value, text]) => el("option", {value}, text)));
const reason = el("input", {placeholder: "reason", "aria-label": "Reason", maxlength: 200});
const form = el("form", {class: "tools", onsubmit: (event) => {
  event.preventDefault();
  change("POST", {}, {kind: kind.value, name: name.value, seconds: Number(seconds.value), ...(reason.value && {reason: reason.value})})
    .then((done) => { if (done) name.value = reason.value = ""; });
}}, kind, name, seconds, reason, el("button", {class: "bad"}, "Ban"));

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
  return [heading("Bans"), form, refused, missing(told),
    table({name: (one) => one.name, kind: (one) => one.kind, ...nodeColumn(told.bans), "ends in (s)": (one) => number(one.seconds ?? 0),
      reason: (one) => one.reason, by: (one) => (one.everywhere ? "an operator" : "this node"),
      "": (one) => el("button", {onclick: () => change("DELETE", {kind: one.kind, name: one.name}), "aria-label": `Lift the ban of ${one.name}`}, "Lift")}, told.bans)];
}
