// What all views are made of. What a broker says goes into text nodes only: topics and client ids are anybody's words.

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
  if (answer.status === 401 || answer.status === 403) {
    const told = await answer.json();
    throw Object.assign(new LoginNeeded(told.error), {first: !known});
  }
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

export const number = (value) => Number(value).toLocaleString("en", {maximumFractionDigits: 1});
export const card = (title, value, mark = "") => el("div", {class: "card"}, el("small", {}, title), el("b", {class: mark}, value));
export const heading = (text) => el("h2", {}, text);
export const sessionLink = (name) => el("a", {href: "#session?" + new URLSearchParams({client_id: name})}, name || "(empty)");
export const mark = (good, yes = "yes", no = "no") => el("span", {class: good ? "ok" : "bad"}, good ? yes : no);

export function table(columns, rows) {
  if (!rows.length) return el("p", {}, "none");
  const head = el("tr", {}, ...Object.keys(columns).map((title) => el("th", {scope: "col"}, title)));
  const lines = rows.map((row) => el("tr", {}, ...Object.values(columns).map((cell) => el("td", {}, cell(row) ?? ""))));
  return el("div", {class: "scroll"}, el("table", {}, el("thead", {}, head), el("tbody", {}, ...lines)));
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

export const SAMPLES = 150; // five minutes of plots
const FEW = 30; // for which there is always room: the first minute

export function plot(title, values, unit) {
  const most = Math.max(0, ...values);
  const wide = Math.max(FEW, values.length), start = wide - values.length;
  const points = values.map((value, at) => `${start + at},${39 - (38 * value) / (most || 1)}`).join(" ");
  const drawn = svg("svg", {viewBox: `0 0 ${wide - 1} 40`, preserveAspectRatio: "none", class: "plot", role: "img", "aria-label": title},
    svg("line", {x1: 0, y1: 39.5, x2: wide, y2: 39.5}));
  if (values.length > 1) drawn.append(svg("polygon", {points: `${start},40 ${points} ${wide - 1},40`}), svg("polyline", {points}));
  const last = values.length ? values[values.length - 1] : 0;
  return el("div", {class: "card"}, el("small", {}, title), el("b", {}, number(last) + unit),
    most ? el("small", {class: "most"}, `max ${number(most)}${unit}`) : "", drawn);
}

// Since when a node is gone, and what waits for it.
export const goneFor = (one) => `gone since ${new Date(one.since).toLocaleTimeString()} (${number(Math.round(one.seconds))} s), ${number(one.queued)} messages wait for it`;

// Names and values, as many beside each other as there is room for.
export const facts = (pairs) => el("dl", {class: "facts"}, ...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
