// Lists without a view of their own: their columns and filters are those of the declaration in the broker.

import {age, api, moment, number} from "./base.js";
import {bytes} from "./chart.js";
import {named, t} from "./language.js";
import {List} from "./lists.js";
import {duration} from "./units.js";

const ELSEWHERE = ["certificates", "nodes", "peers", "users"]; // shown in views of other names
const GROUP = {alarms: "now", overview: "now", sessions: "clients", messages: "messages", links: "messages", cluster: "cluster"};
const KINDS = {number, bytes, age, left: moment, seconds: duration};

function text(value) {
  if (typeof value === "boolean") return value ? t("yes") : t("no");
  return typeof value === "object" ? Object.entries(value).map(([name, one]) => (Array.isArray(value) ? one : `${name} ${one}`)).join(", ") : String(value);
}

const cell = ({field, kind}) => (entry) => {
  const value = entry[field] ?? "";
  return value === "" ? "" : (KINDS[kind] ?? text)(value);
};

// Their views by name, each with its title and its group; without those that are ``known``.
export async function declaredViews(known) {
  const {lists} = await api("/lists");
  const without = lists.filter(({name}) => !(name in known) && !ELSEWHERE.includes(name));
  return Object.fromEntries(without.map(({name, group, path, columns, filters}) => {
    const shown = columns.filter(({field}) => field !== "node"); // which a list adds where there are several
    const list = new List(name, {path, key: name, fields: filters, columns: Object.fromEntries(shown.map((one) => [one.title, cell(one)]))});
    return [name, {title: named("tab." + name, name), group: GROUP[group] ?? "settings", show: list.show}];
  }));
}
