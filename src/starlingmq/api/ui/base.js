// What all views are made of. What a broker says goes into text nodes only: topics and client ids are anybody's words.

import {language, named, t} from "./language.js";

export const $ = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// Asking

export class LoginNeeded extends Error {}

const lacking = new Set(); // paths that this broker does not have

export function forgetWhatLacks() {
  lacking.clear();
}

let admitted = false; // the login is right; what is refused now is refused for another reason

export function authorized() {
  const known = sessionStorage.getItem("authorization");
  return known ? {Authorization: known} : {};
}

export async function send(method, path, parameters = {}, body, signal) {
  const query = new URLSearchParams(parameters).toString();
  const headers = authorized();
  const known = "Authorization" in headers;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path + (query ? "?" + query : ""), {
    method, headers, body: body && JSON.stringify(body), credentials: "omit", signal,
  });
  document.body.classList.toggle("viewer", answer.headers.get("starlingmq-rights") === "view");
  if (answer.status === 401 || (answer.status === 403 && !admitted)) {
    const told = await answer.json();
    admitted = false;
    throw Object.assign(new LoginNeeded(told.error), {first: !known});
  }
  admitted ||= answer.ok;
  return answer;
}

export async function ask(method, path, parameters, body) {
  const answer = await send(method, path, parameters, body);
  const told = await answer.json();
  if (!answer.ok && answer.status !== 503) throw Object.assign(new Error(told.error || answer.statusText), {status: answer.status});
  return told;
}

export const api = (path, parameters) => ask("GET", "/api/v1" + path, parameters);

// The same of what not every broker has: null where it does not.
export async function maybe(path, parameters) {
  if (lacking.has(path)) return null;
  try {
    return await api(path, parameters);
  } catch (error) {
    if (error.status !== 404 && error.status !== 405 && error.status !== 409) throw error;
    lacking.add(path);
    return null;
  }
}

// Showing

export const number = (value) => Number(value).toLocaleString(language, {maximumFractionDigits: 1});
// How long ago an ISO time was, with the time itself for the pointer.
export function age(time) {
  const seconds = Math.max(0, (Date.now() - new Date(time)) / 1000);
  const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, size]) => seconds >= size) ?? ["s", 1];
  return el("time", {datetime: time, title: time}, `${Math.floor(seconds / size)} ${unit}`);
}

// A time of the broker, in the time zone and the spelling of the reader, with the time itself for the pointer.
export function moment(time) {
  if (!time) return "–";
  return el("time", {datetime: time, title: time}, spelledMoment(time));
}

export const spelledMoment = (time) => new Date(time).toLocaleString(language, {dateStyle: "medium", timeStyle: "medium", hourCycle: "h23"});

export const card = (title, value, mark = "") => el("div", {class: "card"}, el("small", {}, title), el("b", {class: mark}, value));
export const heading = (text) => el("h2", {}, text);
export const sessionLink = (name) => el("a", {href: "#session?" + new URLSearchParams({client_id: name})}, name || t("empty"));
export const mark = (good, yes = t("yes"), no = t("no")) => el("span", {class: good ? "ok" : "bad"}, good ? yes : no);

const SHORT = 24; // signs
const HALF = 20; // signs that have room in half the width of a phone

// ``columns``: key of the title in the file of words to what makes a cell. ``head``: of columns that sort the rows, by title: what to do, and how they are sorted now.
export function table(columns, rows, head = {}) {
  if (!rows.length) return el("p", {}, t("none"));
  const titles = Object.keys(columns).map((title) => (title in head
    ? el("th", {scope: "col", role: "columnheader", class: "sorts", "aria-sort": head[title].sorted}, el("button", {class: "sort", onclick: head[title].sort}, named(title),
      el("span", {"aria-hidden": "true"}, {ascending: " ▲", descending: " ▼"}[head[title].sorted] ?? "")))
    : el("th", {scope: "col", role: "columnheader"}, named(title))));
  const lines = rows.map((row) => el("tr", {role: "row"}, ...Object.entries(columns).map(([title, cell]) => told(named(title), cell(row) ?? ""))));
  return el("div", {class: "scroll", tabindex: 0}, el("table", {role: "table"}, el("thead", {role: "rowgroup"}, el("tr", {role: "row", "data-title": Object.keys(head).length ? t("sort") : ""}, ...titles)),
    el("tbody", {role: "rowgroup"}, ...lines)));
}

// A cell. Short texts stay on one line; on a phone, where a row is a card, the cell has its title before it. The roles are those that elements
// of a table lose there.
function told(title, content) {
  const cell = el("td", {role: "cell", "data-title": title}, content);
  cell.classList.toggle("whole", cell.textContent.length <= SHORT);
  cell.classList.toggle("long", title.length + cell.textContent.length > HALF);
  return cell;
}

// Columns that only a cluster has something to say in.
export const nodeColumn = (rows) => (rows.some((row) => row.node) ? {node: (row) => row.node} : {});

// Who did not answer a question to all nodes.
export function missing(told) {
  const lines = (told?.missing || []).map((one) => el("li", {}, `${one.node}: ${one.why}`));
  return lines.length ? el("ul", {class: "bad missing"}, ...lines) : "";
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Since when a node is gone, and what waits for it, or who serves its data.
const goneWord = (one) => (one.stopped ? (one.served_by ? "stopped.served" : "stopped") : one.served_by ? "gone.served" : "gone");
export const goneFor = (one) => t(goneWord(one), {
  time: new Date(one.since).toLocaleTimeString(language, {hourCycle: "h23"}), seconds: number(Math.round(one.seconds)),
  messages: number(one.queued), server: one.served_by,
});

// Names and values, as many beside each other as there is room for.
export const facts = (pairs) => el("dl", {class: "facts"}, ...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

// Change what an element shows. Nodes that stay are not moved, so that focus, pointer and half-typed text stay with them; focus on others goes to the
// new node in their place.
export function replace(shown, parts) {
  const wanted = parts.filter((part) => part !== "");
  const focused = shown.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && places(shown).filter((one) => like(one, focused)).indexOf(focused);
  const scrolled = [...shown.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const staying = new Set(wanted);
  for (const old of [...shown.childNodes]) if (!staying.has(old)) old.remove();
  wanted.forEach((part, at) => {
    if (shown.childNodes[at] !== part) shown.insertBefore(part instanceof Node ? part : document.createTextNode(part), shown.childNodes[at] ?? null);
  });
  shown.querySelectorAll(".scroll").forEach((one, at) => { if (scrolled[at]) one.scrollLeft = scrolled[at]; });
  if (focused && !shown.contains(focused)) places(shown).filter((one) => like(one, focused))[place]?.focus({preventScroll: true});
}

const places = (shown) => [...shown.querySelectorAll("a, button, input, select, summary, [tabindex]")];
const like = (one, other) => one.localName === other.localName && one.textContent === other.textContent && one.getAttribute("href") === other.getAttribute("href");
