"use strict";
// One page, no library. What a broker says goes into text nodes only: topics and client ids are anybody's words.

const EVERY_MS = 2000;
const SAMPLES = 150; // five minutes of plots
const $ = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// Asking

class LoginNeeded extends Error {}

async function ask(method, path, parameters = {}, body) {
  const query = new URLSearchParams(parameters).toString();
  const headers = {};
  const known = sessionStorage.getItem("authorization");
  if (known) headers.Authorization = known;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path + (query ? "?" + query : ""), {
    method, headers, body: body && JSON.stringify(body), credentials: "omit",
  });
  if (answer.status === 401 || answer.status === 403) {
    const told = await answer.json();
    throw Object.assign(new LoginNeeded(told.error), {first: !known});
  }
  const told = await answer.json();
  if (!answer.ok && answer.status !== 503) throw new Error(told.error || answer.statusText);
  return told;
}

const api = (path, parameters) => ask("GET", "/api/v1" + path, parameters);

$("login").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const bytes = new TextEncoder().encode($("user").value + ":" + $("password").value);
  const basic = "Basic " + btoa(String.fromCharCode(...bytes));
  sessionStorage.setItem("authorization", $("token").value ? "Bearer " + $("token").value : basic);
  $("login").close();
  refresh();
});

// Showing

const number = (value) => Number(value).toLocaleString("en", {maximumFractionDigits: 1});
const card = (title, value, mark = "") => el("div", {class: "card"}, el("small", {}, title), el("b", {class: mark}, value));
const heading = (text) => el("h2", {}, text);

function table(columns, rows) {
  if (!rows.length) return el("p", {}, "none");
  const head = el("tr", {}, ...Object.keys(columns).map((title) => el("th", {scope: "col"}, title)));
  const lines = rows.map((row) => el("tr", {}, ...Object.values(columns).map((cell) => el("td", {}, cell(row) ?? ""))));
  return el("div", {class: "scroll"}, el("table", {}, el("thead", {}, head), el("tbody", {}, ...lines)));
}

const sessionLink = (id) => el("a", {href: "#session?" + new URLSearchParams({client_id: id})}, id || "(empty)");

function plot(title, values, unit) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const top = Math.max(1e-9, ...values);
  svg.setAttribute("viewBox", `0 0 ${SAMPLES} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "plot");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title);
  const line = document.createElementNS(svg.namespaceURI, "polyline");
  const start = SAMPLES - values.length;
  line.setAttribute("points", values.map((value, at) => `${start + at},${39 - (38 * value) / top}`).join(" "));
  svg.append(line);
  const last = values.length ? values[values.length - 1] : 0;
  return el("div", {class: "card"}, el("small", {}, title), el("b", {}, number(last) + unit), svg);
}

// Rates

const history = {received: [], sent: [], dropped: [], turn: []};
let before = null;

function note(seen) {
  const turn = {count: seen.latency.turn.count, total: seen.latency.turn.count * seen.latency.turn.mean_ms};
  if (before && before.uptime < seen.uptime && before.node === seen.node) {
    const seconds = seen.now - before.now;
    const rate = (name) => Math.max(0, (seen.totals[name] - before.totals[name]) / seconds);
    const turns = turn.count - before.turn.count;
    const points = {
      received: rate("messages_received"), sent: rate("messages_sent"), dropped: rate("dropped"),
      turn: turns > 0 ? Math.max(0, (turn.total - before.turn.total) / turns) : 0,
    };
    for (const [name, value] of Object.entries(points)) {
      history[name].push(value);
      if (history[name].length > SAMPLES) history[name].shift();
    }
  }
  before = {...seen, turn};
}

// Views

async function overview(seen) {
  const dropped = Object.entries(seen.dropped).sort((a, b) => b[1] - a[1]);
  const latency = Object.entries(seen.latency);
  return [
    el("div", {class: "cards wide"},
      plot("Messages in, a second", history.received, "/s"), plot("Messages out, a second", history.sent, "/s"),
      plot("Turn of the event loop, mean", history.turn, " ms"), plot("Dropped, a second", history.dropped, "/s")),
    heading("Now"),
    el("div", {class: "cards"}, ...Object.entries(seen.holds).map(([name, value]) => card(name.replace("_", " "), number(value)))),
    heading("Latency"),
    table({"": ([name]) => name, count: ([, one]) => number(one.count), "mean ms": ([, one]) => one.mean_ms,
      "p50 below ms": ([, one]) => one.p50_ms, "p99 below ms": ([, one]) => one.p99_ms}, latency),
    heading("Dropped, by reason"), table({reason: ([name]) => name, messages: ([, count]) => number(count)}, dropped),
    heading("Slow subscribers"),
    table({client: (one) => sessionLink(one.client_id), waiting: (one) => number(one.queued)}, seen.slowest),
  ];
}

function list(path, key, columns, search = true) {
  return async (seen, parameters) => {
    const page = await api(path, parameters);
    const there = new URLSearchParams(location.hash.split("?")[1]);
    const go = (changes) => { location.hash = location.hash.split("?")[0] + "?" + new URLSearchParams(changes); };
    const field = el("input", {type: "search", placeholder: "client id contains", value: there.get("q") || "", "aria-label": "Search",
      onchange: (event) => go(event.target.value ? {q: event.target.value} : {})});
    const more = page.next ? el("button", {onclick: () => go({...Object.fromEntries(there), cursor: page.next})}, "Next page") : "";
    const first = there.get("cursor") ? el("button", {onclick: () => go({})}, "First page") : "";
    return [el("div", {class: "tools"}, search ? field : "", first, more), table(columns, page[key])];
  };
}

async function session(seen, parameters) {
  const one = await api("/session", parameters);
  const name = one.session.client_id;
  const button = (text, method, path, after) => el("button", {class: "bad", onclick: async () => {
    if (!confirm(`${text}: ${name}?`)) return;
    await ask(method, path, {client_id: name});
    location.hash = after;
    refresh();
  }}, text);
  return [
    heading("Session of " + name),
    el("div", {class: "tools"}, one.client ? button("Disconnect", "DELETE", "/api/v1/client", location.hash) : "",
      button("End session", "DELETE", "/api/v1/session", "#sessions")),
    table({"": ([key]) => key.replaceAll("_", " "), value: ([, value]) => (value === null ? "–" : String(value))},
      [...Object.entries(one.session), ...Object.entries(one.client || {}).filter(([key]) => !(key in one.session))]),
    heading("Subscriptions"), table({filter: (s) => s.filter, qos: (s) => s.qos}, one.subscriptions),
    heading("In flight"),
    table({id: (w) => w.packet_id, qos: (w) => w.qos, stage: (w) => w.stage, topic: (w) => w.topic ?? "(stored)", bytes: (w) => w.size}, one.window),
    heading("Queue"), table({topic: (q) => q.topic ?? "(stored)", qos: (q) => q.qos, bytes: (q) => q.size}, one.queue),
  ];
}

async function message(seen, parameters) {
  const one = await api("/retained/message", parameters);
  return [heading(one.topic), el("p", {}, `QoS ${one.qos}, ${number(one.size)} bytes, by ${one.publisher || "the broker"} at ${one.published_at}`),
    el("pre", {}, one.payload ?? one.payload_base64)];
}

async function nodes() {
  const all = await api("/nodes");
  const mark = (good) => el("span", {class: good ? "ok" : "bad"}, good ? "yes" : "no");
  return [heading(all.cluster ? "Cluster " + all.cluster : "One node, no cluster"),
    table({node: (n) => n.name + (n.this ? " (this one)" : ""), version: (n) => n.version, online: (n) => mark(n.online),
      connected: (n) => mark(n.connected), through: (n) => n.through, clients: (n) => number(n.clients ?? 0),
      waiting: (n) => number(n.queued ?? 0), draining: (n) => (n.draining ? "yes" : "")}, all.members)];
}

const VIEWS = {
  overview: {title: "Overview", show: overview},
  clients: {title: "Clients", show: list("/clients", "clients", {client: (c) => sessionLink(c.client_id), user: (c) => c.username,
    from: (c) => c.peer, protocol: (c) => c.protocol, subscriptions: (c) => number(c.subscriptions), queued: (c) => number(c.queued),
    "in flight": (c) => number(c.inflight), dropped: (c) => number(c.dropped), slow: (c) => (c.slow ? "yes" : "")})},
  sessions: {title: "Sessions", show: list("/sessions", "sessions", {client: (s) => sessionLink(s.client_id),
    connected: (s) => (s.connected ? "yes" : "no"), subscriptions: (s) => number(s.subscriptions), queued: (s) => number(s.queued),
    "in flight": (s) => number(s.inflight), dropped: (s) => number(s.dropped), expires: (s) => s.expires_at})},
  retained: {title: "Retained", show: list("/retained", "retained", {
    topic: (r) => el("a", {href: "#message?" + new URLSearchParams({topic: r.topic})}, r.topic), qos: (r) => r.qos,
    bytes: (r) => number(r.size), from: (r) => r.publisher, at: (r) => r.published_at}, false)},
  groups: {title: "Groups", show: list("/groups", "groups", {group: (g) => g.name, filter: (g) => g.filter, strategy: (g) => g.strategy,
    primary: (g) => g.primary, "members here": (g) => `${g.online_here} of ${g.members_here}`,
    elsewhere: (g) => Object.entries(g.nodes).map(([name, n]) => `${name}: ${number(n.members)}`).join(", "),
    waiting: (g) => number(g.waiting_here), lag: (g) => number(g.lag), given: (g) => number(g.given), "given again": (g) => number(g.redelivered)}, false)},
  streams: {title: "Streams", show: list("/streams", "streams", {stream: (s) => s.name, messages: (s) => number(s.messages),
    bytes: (s) => number(s.bytes), full: (s) => (s.full ? "yes" : ""), dropped: (s) => number(s.dropped),
    readers: (s) => s.consumers.map((c) => `${c.name}: ${number(c.lag)} behind`).join(", ")}, false)},
  nodes: {title: "Nodes", show: nodes},
  session: {show: session},
  message: {show: message},
};

for (const [name, view] of Object.entries(VIEWS)) {
  if (view.title) $("tabs").append(el("a", {href: "#" + name, id: "tab-" + name}, view.title));
}
$("tabs").append(el("a", {href: "/docs"}, "API"));

let turn = 0;

async function refresh() {
  const mine = ++turn; // a later one makes earlier answers worthless
  const [name, query] = location.hash.slice(1).split("?");
  const view = VIEWS[name] || VIEWS.overview;
  try {
    const seen = await api("/overview");
    note(seen);
    const parts = await view.show(seen, Object.fromEntries(new URLSearchParams(query)));
    if (mine !== turn) return;
    $("node").textContent = `${seen.node} ${seen.version}`;
    $("state").textContent = seen.ready.reasons.join("; ") || "serving";
    $("state").className = seen.ready.reasons.length ? "bad" : "ok";
    if (!$("view").contains(document.activeElement) || document.activeElement.tagName !== "INPUT") $("view").replaceChildren(...parts);
    for (const tab of $("tabs").children) tab.toggleAttribute("aria-current", tab.id === "tab-" + (VIEWS[name] ? name : "overview"));
    document.body.dataset.shown = name || "overview";
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof LoginNeeded) {
      $("refused").textContent = error.first ? "" : error.message;
      sessionStorage.removeItem("authorization");
      if (!$("login").open) $("login").showModal();
    } else {
      $("state").textContent = error instanceof TypeError ? "the broker does not answer" : error.message;
      $("state").className = "bad";
    }
  }
}

addEventListener("hashchange", refresh);
setInterval(() => { if (!document.hidden && !$("login").open) refresh(); }, EVERY_MS);
refresh();
