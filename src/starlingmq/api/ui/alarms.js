// Alarms of all nodes, their history, and the certificates that end first.

import {age, api, el, heading, missing, nodeColumn, number, table} from "./base.js";
import {t} from "./language.js";

const severity = (one) => el("span", {class: one.severity === "critical" ? "bad" : "warn"}, t("severity." + one.severity));
const title = (one) => (one.subject ? `${one.kind}: ${one.subject}` : one.kind);
const page = (one) => (one.page?.startsWith("http") ? el("a", {href: one.page, target: "_blank", rel: "noreferrer"}, one.page.split("/").pop()) : one.page ?? "");
const nodes = (one) => one.nodes.join(", ");
const lasted = (one) => number(Math.round((new Date(one.ended) - new Date(one.since)) / 1000)) + " s";
const left = (one) => (one.days >= 0 && one.days < 3 ? number(Math.floor((new Date(one.ends_at) - Date.now()) / 3600000)) + " h" : number(one.days));

export async function alarms() {
  const [told, files] = await Promise.all([api("/alarms"), api("/certificates")]);
  return [
    missing(told),
    heading(t("tab.alarms")),
    told.alarms.length ? table({alarm: title, severity, nodes, since: (one) => age(one.since), problem: (one) => one.text,
      "what to do": (one) => one.next, page}, told.alarms) : el("p", {class: "ok"}, t("alarms.none")),
    heading(t("alarms.ended")),
    table({alarm: title, severity, nodes, ended: (one) => age(one.ended), lasted, problem: (one) => one.text}, told.history),
    heading(t("certificates")),
    table({file: (one) => one.file, kind: (one) => one.kind, name: (one) => one.name, setting: (one) => one.setting, ...nodeColumn(files.certificates), ends: (one) => one.ends_at?.slice(0, 10) ?? "",
      "days left": (one) => (one.problem ? el("span", {class: "bad"}, one.problem)
        : el("span", {class: {valid: "", soon: "warn"}[one.state] ?? "bad"}, left(one)))}, files.certificates),
  ];
}
