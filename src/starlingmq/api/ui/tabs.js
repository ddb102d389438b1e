// The views, in groups: a row of groups, and below it the views of the group that is shown. A view of what is not configured is hidden, and so is a row
// with one view.

import {$, el, maybe} from "./base.js";
import {t} from "./language.js";

const GROUPS = {
  now: ["overview", "alarms", "activity", "droppers"],
  clients: ["clients", "sessions", "subscriptions", "bans"],
  messages: ["topics", "hand", "retained", "groups", "streams", "links"],
  cluster: ["nodes"],
  settings: ["settings", "rules", "connectors"],
  log: ["log", "lines", "actions"],
};
// Views that a link leads to.
const INNER = {session: "clients", message: "messages", waiting: "messages", trace: "messages"};
const has = (name) => () => maybe("/" + name).then((told) => told?.[name].length);
const CONFIGURED = {streams: has("streams"), connectors: has("connectors"), links: has("links")};

const groupOf = (name) => INNER[name] ?? Object.keys(GROUPS).find((group) => GROUPS[group].includes(name)) ?? "now";
const current = (link, is) => {
  if (is && !link.hasAttribute("aria-current")) link.scrollIntoView({block: "nearest", inline: "center"});
  link.toggleAttribute("aria-current", is);
};
let shown = "";

export let criticalAlarms = 0;

export function makeTabs(titles) {
  for (const [group, names] of Object.entries(GROUPS)) {
    $("groups").append(el("a", {href: "#" + names[0], id: "group-" + group}, t("group." + group)));
    $("tabs").append(...names.map((name) => el("a", {href: "#" + name, id: "tab-" + name}, titles[name])));
  }
  for (const name of Object.keys(CONFIGURED)) $("tab-" + name).dataset.absent = "";
  $("groups").append(el("a", {href: "/docs"}, "API"));
  $("groups").setAttribute("aria-label", t("views"));
  $("tabs").setAttribute("aria-label", t("views.of_group"));
  $("tabs").hidden = true; // until a view is shown
}

// A view that the broker has declared.
export function addTab(name, {title, group}) {
  GROUPS[group].push(name);
  $("tabs").append(el("a", {href: "#" + name, id: "tab-" + name}, title));
}

// The view of this name is shown; ``clustered``: this broker is a node of a cluster.
export function showTab(name, clustered) {
  const group = groupOf(name);
  $("group-cluster").hidden = !clustered && group !== "cluster";
  for (const link of $("groups").children) current(link, link.id === "group-" + group);
  const among = () => {
    for (const link of $("tabs").children) {
      const own = link.id === "tab-" + name;
      link.hidden = !GROUPS[group].includes(link.id.slice(4)) || ("absent" in link.dataset && !own);
      current(link, own);
    }
    $("tabs").hidden = [...$("tabs").children].filter((link) => !link.hidden).length < 2;
  };
  among();
  if (group === shown) return;
  shown = group;
  for (const [name, ask] of Object.entries(CONFIGURED)) {
    if (GROUPS[group].includes(name)) ask().then((found) => { if (found) delete $("tab-" + name).dataset.absent; among(); }).catch(() => {});
  }
}

// The number of alarms, at the view of alarms and at its group.
export function showAlarms(count, critical) {
  criticalAlarms = critical;
  for (const [id, title] of [["tab-alarms", t("tab.alarms")], ["group-now", t("group.now")]]) {
    $(id).textContent = title + (count ? ` (${count})` : "");
    $(id).classList.toggle("bad", critical > 0);
  }
}
