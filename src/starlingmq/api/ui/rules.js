// Users, rules, and whether a client may publish there: as the node that is asked has them. Those of operators are changed on all nodes.

import {api, ask, el, heading, number, table} from "./base.js";
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

const refused = el("p", {class: "bad", role: "alert"});

async function change(form, method, path, parameters, body) {
  refused.textContent = "";
  try {
    await ask(method, "/api/v1" + path, parameters, body);
    form?.reset();
    dispatchEvent(new Event("hashchange"));
  } catch (error) {
    if (error.message.includes("use force") && confirm(error.message)) return change(form, method, path, body ? parameters : {...parameters, force: true}, body && {...body, force: true});
    refused.textContent = error.message;
  }
}

const input = (name, more = {}) => el("input", {name, "aria-label": t("make." + name), placeholder: t("make." + name), ...more});
const choice = (name, values) => el("select", {name, "aria-label": t("make." + name)}, ...Object.entries(values).map(([value, text]) => el("option", {value}, text)));
const words = (text) => text.split(",").map((one) => one.trim()).filter((one) => one);
const making = (label, send, ...parts) => el("form", {class: "tools operates", autocomplete: "off", onsubmit: (event) => {
  event.preventDefault();
  send(event.target, Object.fromEntries(new FormData(event.target)));
}}, ...parts, el("button", {}, label));
const secret = (required) => input("password", {type: "password", autocomplete: "new-password", required, maxlength: 1024});
const rights = {none: t("users.none"), viewer: t("users.viewer"), operator: t("users.operator")};
const newUser = making(t("users.add"), (form, given) => change(form, "POST", "/users", {}, given),
  input("name", {required: "", maxlength: 256}), secret(""), choice("api", rights));
const changedUser = making(t("users.change"), (form, given) => change(form, "PUT", "/users", {}, given),
  input("name", {required: "", maxlength: 256}), secret(false), choice("api", {keep: t("users.keep"), ...rights}));
const newRule = making(t("rules.set"), (form, {name, decision, actions, users, topics, before}) => change(form, "PUT", "/rules", {},
  {name, before, rule: {[decision]: words(actions), users: words(users), topics: words(topics)}}),
input("name", {required: "", maxlength: 100}), choice("decision", {allow: t("decision.allow"), deny: t("decision.deny")}), input("actions", {required: ""}),
input("users"), input("topics"), input("before", {maxlength: 100}));
const removal = (path, name) => el("button", {class: "bad operates", onclick: () => {
  if (confirm(t("make.sure", {name}))) change(null, "DELETE", path, {name});
}, "aria-label": t("make.sure", {name})}, t("make.delete"));

const ROLES = {operator: t("users.operator"), viewer: t("users.viewer"), "": ""};
const search = el("input", {type: "search", placeholder: t("find.user"), "aria-label": t("find.user"), oninput: () => dispatchEvent(new Event("hashchange"))});
const searching = el("div", {class: "tools", role: "search"}, search);

function userTable(told) {
  return [heading(t("users.title")),
    el("p", {}, told.methods.length ? t("users.methods", {methods: told.methods.join(", ")}) : t("users.unchecked"), " ",
      t("users.anonymous", {count: number(told.anonymous)})),
    searching,
    table({user: (one) => one.name, stored: (one) => one.stored.join(", "),
      clients: (one) => (one.clients ? el("a", {href: "#clients?" + new URLSearchParams({user: one.name})}, number(one.clients)) : "0"),
      "rights in the API": (one) => ROLES[one.api],
      action: (one) => (one.origin === "operator" ? removal("/users", one.name) : ""),
      test: (one) => el("a", {href: "#rules?" + new URLSearchParams({username: one.name}), "aria-label": t("users.test_of", {name: one.name})}, t("rules.link"))}, told.users), newUser, changedUser,
    told.total > told.users.length ? el("p", {class: "faint"}, t("of", {count: number(told.users.length), total: number(told.total)})) : ""];
}

let taken = null; // the address of the page that the form has taken names from

const title = heading(t("rules.title"));
const said = el("p", {class: "faint"}, t("rules.note"));

export async function rules(seen, parameters) {
  if (taken !== location.hash) for (const name of ["client_id", "username"]) if (parameters[name]) fields[name].value = parameters[name];
  taken = location.hash;
  const [told, users] = await Promise.all([api("/rules"), api("/users", {q: search.value.trim()})]);
  const list = told.total
    ? [el("p", {}, t("rules.default", {decision: t("decision." + told.default), file: told.file || t("rules.operators"), total: number(told.total)})),
      table({rule: (one) => [number(one.number), one.name].filter((part) => part).join(" "), decision: (one) => el("span", {class: one.decision === "allow" ? "ok" : "bad"}, t("decision." + one.decision)),
        actions: (one) => one.actions.join(", "), for: (one) => Object.entries(one.names).map(([name, value]) => `${name}: ${value}`).join("; ") || t("rules.all"),
        applied: (one) => number(one.applied), action: (one) => (one.name ? removal("/rules", one.name) : "")}, told.rules)]
    : [el("p", {}, t("rules.nofile"))];
  return [title, said, shown, answer, heading(t("rules.list")), refused, ...list, newRule, ...userTable(users)];
}
