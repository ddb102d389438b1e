// Settings that can be changed while the broker serves: checked first, shown as a difference, then applied.

import {api, ask, el, heading, missing, table} from "./base.js";
import {t} from "./language.js";
import {duration, size} from "./units.js";

const spelled = (value) => (value === null ? "null" : String(value));
const UNITS = {duration, seconds: duration, size};
const said = (one, value) => (one.unit && typeof value === "number" ? UNITS[one.unit](value) : spelled(value));

const search = el("input", {type: "search", placeholder: t("find.setting"), "aria-label": t("find.setting"), oninput: () => dispatchEvent(new Event("hashchange"))});
const where = el("select", {"aria-label": t("col.node")}, el("option", {value: ""}, t("bans.node")), el("option", {value: "*"}, t("settings.all")));
const field = el("input", {"aria-label": t("settings.new"), required: ""});
const told = el("p", {id: "setting-told", role: "status"});
const apply = el("button", {type: "button", class: "bad", hidden: "", onclick: () => change(false)}, t("settings.apply"));
const name = el("b", {});
const help = el("p", {class: "faint"});
const form = el("form", {hidden: "", onsubmit: (event) => {
  event.preventDefault();
  change(true);
}}, el("div", {class: "tools"}, el("span", {}, name), field, where, el("button", {}, t("settings.check")), apply), help, told);
field.addEventListener("input", () => { apply.hidden = true; });
where.addEventListener("change", () => { apply.hidden = true; });

let edited = null;

function edit(one) {
  edited = one;
  name.textContent = one.path;
  help.textContent = one.help;
  field.value = said(one, one.value);
  form.hidden = false;
  apply.hidden = true;
  told.textContent = "";
  field.focus();
  form.scrollIntoView({block: "nearest"});
}

async function change(check) {
  told.replaceChildren();
  try {
    const answer = await ask("PUT", "/api/v1/settings", {}, {path: edited.path, value: field.value, only_check: check, node: where.value});
    const lines = Object.entries(answer.nodes).map(([node, one]) => el("div", {}, `${node}: `, el("del", {}, said(edited, one.before)), " ",
      el("ins", {}, said(edited, one.after)), one.applied ? ` ${t("settings.applied")}` : one.before === one.after ? ` ${t("settings.same")}` : ""));
    told.className = "";
    told.append(...lines, missing(answer));
    apply.hidden = !check || Object.values(answer.nodes).every((one) => one.before === one.after);
    if (!check) dispatchEvent(new Event("hashchange"));
  } catch (error) {
    apply.hidden = true;
    told.className = "bad";
    told.textContent = error.message;
  }
}

const title = heading(t("settings.title"));
const note = el("p", {class: "faint"}, t("settings.note"));
const tools = el("div", {class: "tools", role: "search"}, search);

export async function settings() {
  const {settings: all} = await api("/settings");
  const shown = all.filter((one) => one.path.includes(search.value.trim()));
  const differs = (one) => (one.value === one.default ? said(one, one.value) : el("b", {title: t("settings.default", {value: said(one, one.default)})}, said(one, one.value)));
  return [title, note, tools, form,
    table({setting: (one) => el("span", {class: "whole"}, one.path), value: differs, meaning: (one) => one.help,
      action: (one) => el("button", {class: "operates", onclick: () => edit(one), "aria-label": t("settings.edit_of", {path: one.path})}, t("settings.edit"))}, shown)];
}
