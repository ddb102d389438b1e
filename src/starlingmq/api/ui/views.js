// Views that are drawn anew from what the broker says each time: (overview, parameters) to what is shown.

import {age, api, ask, el, facts, heading, missing, moment, nodeColumn, number, sessionLink, spelledMoment, table} from "./base.js";
import {activity} from "./activity.js";
import {alarms} from "./alarms.js";
import {bans} from "./bans.js";
import {bytes} from "./chart.js";
import {connectors} from "./connectors.js";
import {hand} from "./hand.js";
import {named, t} from "./language.js";
import {links} from "./links.js";
import {List} from "./lists.js";
import {duration} from "./units.js";
import {rules} from "./rules.js";
import {nodes} from "./map.js";
import {settings} from "./settings.js";
import {overview} from "./overview.js";

const said = (value) => (value === true ? t("yes") : value === false ? t("no") : value === null || value === "" ? "–" : String(value));

const NEVER = 0xffffffff; // of the session expiry interval
const seconds = (value) => (value === NEVER ? t("never") : number(value) + " s");
const FACTS = {connected_at: moment, unacknowledged_since: moment, expires_at: moment, expiry: seconds, keep_alive: seconds, queued_bytes: bytes,
  subscriptions: number, queued: number, inflight: number, awaiting_rel: number, dropped: number};

const FIRST = 10; // entries of each list of a session

// A list of a session: the first entries, or all that the broker shows; how many there are; and a link to all of them, or back. ``wanted``: the list that the
// address wants whole.
function part(name, title, columns, entries, total, {all: wanted, ...parameters}) {
  const whole = wanted === name;
  const shown = whole ? entries : entries.slice(0, FIRST);
  const link = (text, address) => el("p", {}, el("a", {href: "#session?" + new URLSearchParams(address), id: "all-" + name}, text));
  return [heading(shown.length < total ? `${title} (${t("of", {count: number(shown.length), total: number(total)})})` : title), table(columns, shown),
    entries.length <= FIRST ? "" : whole ? link(t("session.first", {count: FIRST}), parameters) : link(t("session.all", {count: number(entries.length)}), {...parameters, all: name})];
}

const unshared = (filter) => (filter.startsWith("$share/") ? filter.split("/").slice(2).join("/") : filter);

async function session(seen, parameters) {
  const {all: _, ...asked} = parameters;
  const one = await api("/session", asked);
  const name = one.session.client_id;
  const look = (place, at, text) => el("a", {href: "#waiting?" + new URLSearchParams({client_id: name, place, number: at, ...(one.node && {node: one.node})})}, text);
  const button = (text, method, path, after) => el("button", {class: "bad operates", onclick: async () => {
    if (!confirm(`${text}: ${name}?`)) return;
    await ask(method, path, {client_id: name});
    location.hash = after;
    dispatchEvent(new Event("hashchange"));
  }}, text);
  return [
    heading(t("session.title", {name})),
    el("div", {class: "tools"}, el("a", {href: "#trace?" + new URLSearchParams({client_id: name})}, t("trace")),
      el("a", {href: "#bans?" + new URLSearchParams({kind: "client", name}), class: "operates"}, t("ban")),
      el("a", {href: "#rules?" + new URLSearchParams({client_id: name})}, t("rules.link")),
      one.client ? button(t("disconnect"), "DELETE", "/api/v1/client", location.hash) : "",
      button(t("session.end"), "DELETE", "/api/v1/session", "#sessions")),
    facts([...Object.entries(one.session), ...Object.entries(one.client || {}).filter(([key]) => !(key in one.session))]
      .filter(([key]) => key !== "client_id" && (key !== "node" || one.node)).map(([key, value]) => [named("fact." + key, key.replaceAll("_", " ")), key in FACTS ? FACTS[key](value) : said(key === "node" ? one.node : value)])),
    ...part("subscriptions", t("subscriptions"), {filter: (s) => s.filter, qos: (s) => s.qos}, one.subscriptions, one.session.subscriptions, parameters),
    ...part("window", t("session.inflight"), {id: (w) => look("window", w.packet_id, w.packet_id), qos: (w) => w.qos, stage: (w) => w.stage, topic: (w) => w.topic ?? t("stored"),
      bytes: (w) => number(w.size), sent: (w) => moment(w.sent_at)}, one.window, one.session.inflight, parameters),
    ...part("queue", t("session.queue"), {place: (q) => look("queue", q.place, number(q.place + 1)), topic: (q) => q.topic ?? t("stored"), qos: (q) => q.qos,
      bytes: (q) => number(q.size)}, one.queue.map((entry, place) => ({...entry, place})), one.session.queued, parameters),
  ];
}

async function message(seen, parameters) {
  const one = await api("/retained/message", parameters);
  const remove = el("button", {class: "bad operates", onclick: async () => {
    if (!confirm(t("message.confirm", {topic: one.topic}))) return;
    await ask("DELETE", "/api/v1/retained/message", {topic: one.topic});
    location.hash = "#retained";
  }}, t("message.delete"));
  return [heading(one.topic), el("p", {}, t("message.facts", {qos: one.qos, size: number(one.size), publisher: one.publisher || t("broker"), time: spelledMoment(one.published_at)})),
    el("div", {class: "tools"}, remove), el("pre", {}, one.payload ?? one.payload_base64)];
}

// One message that waits for a client, or for its acknowledgement.
async function waiting(seen, parameters) {
  const one = await api("/session/message", parameters);
  return [heading(one.topic), el("p", {}, t(parameters.place === "window" ? "waiting.window" : "waiting.queue"), " ", sessionLink(parameters.client_id)),
    facts([["QoS", one.qos], [t("retained"), said(one.retain)], [t("col.bytes"), number(one.size)], [t("col.published"), moment(one.published_at)], [t("waiting.publisher"), one.publisher || t("broker")],
      [t("col.expires"), moment(one.expires_at)]]),
    one.shown < one.size ? el("p", {class: "warn"}, t("waiting.first", {size: number(one.shown)})) : "",
    el("pre", {tabindex: 0, id: "payload"}, one.payload ?? one.payload_base64)];
}

// How long, and how much of it, a stream keeps.
const kept = (s) => [s.retention_time && duration(s.retention_time), s.retention_size && bytes(s.retention_size)].filter(Boolean).join(", ") || t("streams.everything");

async function streams() {
  const told = await api("/streams");
  const readers = told.streams.flatMap((one) => one.consumers.map((reader) => ({...reader, stream: one.name, node: one.node})));
  return [missing(told), heading(t("tab.streams")),
    table({stream: (s) => s.name, ...nodeColumn(told.streams), topics: (s) => (s.topics ?? []).join(", "), messages: (s) => number(s.messages),
      "first offset": (s) => number(s.first), "next offset": (s) => number(s.next), bytes: (s) => bytes(s.bytes), kept: kept, full: (s) => (s.full ? t("yes") : ""),
      dropped: (s) => number(s.dropped)}, told.streams),
    heading(t("streams.readers")),
    table({reader: (r) => r.name, stream: (r) => r.stream, ...nodeColumn(readers), "next offset": (r) => number(r.next), "lag (messages)": (r) => number(r.lag),
      "last heard (s ago)": (r) => number(r.heard_seconds ?? 0), "pins retention": (r) => (r.pins ? t("yes") : "")}, readers)];
}

const clients = new List("clients", {path: "/clients/search", key: "clients",
  fields: {q: t("find.client"), user: t("find.user"), address: t("find.address")},
  sorts: {client: "client_id", user: "username", from: "peer", since: "connected_at", subscriptions: "subscriptions", queued: "queued",
    "in flight": "inflight", dropped: "dropped"},
  columns: {client: (c) => sessionLink(c.client_id), user: (c) => c.username, from: (c) => c.peer, protocol: (c) => c.protocol,
    since: (c) => age(c.connected_at), subscriptions: (c) => number(c.subscriptions), queued: (c) => number(c.queued),
    "in flight": (c) => number(c.inflight), dropped: (c) => number(c.dropped), slow: (c) => (c.slow ? t("yes") : "")}});

const sessions = new List("sessions", {path: "/sessions/search", key: "sessions", fields: {q: t("find.client")},
  choices: {connected: {"": t("connected.any"), true: t("connected"), false: t("connected.not")}},
  sorts: {client: "client_id", connected: "connected", subscriptions: "subscriptions", queued: "queued", bytes: "queued_bytes",
    "in flight": "inflight", dropped: "dropped", expires: "expires_at"},
  columns: {client: (s) => sessionLink(s.client_id), connected: (s) => (s.connected ? t("yes") : t("no")), subscriptions: (s) => number(s.subscriptions),
    queued: (s) => number(s.queued), bytes: (s) => number(s.queued_bytes), "in flight": (s) => number(s.inflight), dropped: (s) => number(s.dropped),
    expires: (s) => s.expires_at && moment(s.expires_at)}});

const subscriptions = new List("subscriptions", {path: "/subscriptions/search", key: "subscriptions", fields: {q: t("find.client"), filter: t("find.part"), topic: t("find.topic")},
  sorts: {filter: "filter", client: "client_id", qos: "qos"},
  columns: {filter: (s) => el("a", {href: "#topics?" + new URLSearchParams({filter: unshared(s.filter)})}, s.filter), client: (s) => sessionLink(s.client_id),
    qos: (s) => s.qos, "no local": (s) => (s.no_local ? t("yes") : ""), "retain as published": (s) => (s.retain_as_published ? t("yes") : "")}});

const retained = new List("retained", {path: "/retained/search", key: "retained", fields: {filter: t("find.filter")},
  sorts: {topic: "topic", qos: "qos", bytes: "size", from: "publisher", published: "published_at"},
  columns: {topic: (r) => el("a", {href: "#message?" + new URLSearchParams({topic: r.topic})}, r.topic), qos: (r) => r.qos,
    bytes: (r) => (r.size === null ? "" : number(r.size)), from: (r) => r.publisher, published: (r) => age(r.published_at), expires: (r) => r.expires_at && moment(r.expires_at)}});

const groups = new List("groups", {path: "/groups/search", key: "groups", fields: {prefix: t("find.group")},
  sorts: {group: "name", filter: "filter", strategy: "strategy", primary: "primary", members: "members", waiting: "waiting_here", lag: "lag",
    delivered: "given", redelivered: "redelivered"},
  columns: {group: (g) => g.name, filter: (g) => g.filter, strategy: (g) => g.strategy,
    primary: (g) => g.primary, members: (g) => number(g.members_here + Object.values(g.nodes).reduce((sum, n) => sum + n.members, 0)),
    "members by node": (g) => [[g.node || g.primary, {members: g.members_here}], ...Object.entries(g.nodes)].filter(([, n]) => n.members)
      .map(([name, n]) => `${name}: ${number(n.members)}`).join(", "),
    waiting: (g) => number(g.waiting_here), lag: (g) => number(g.lag), delivered: (g) => number(g.given), redelivered: (g) => number(g.redelivered)}});

const actions = new List("actions", {path: "/actions", key: "actions", fields: {operator: t("find.operator"), client: t("find.whole_client"), text: t("find.text"), since: t("find.since")},
  columns: {time: (a) => moment(a.time), operator: (a) => a.by, from: (a) => a.address, nodes: (a) => a.nodes.join(", "), action: (a) => a.what,
    outcome: (a) => el("span", {class: a.outcome.startsWith("failed") ? "bad" : ""}, a.outcome), before: (a) => a.before, after: (a) => a.after,
    count: (a) => (a.count > 1 ? number(a.count) : "")},
  below: (page) => (page.actions.length ? [el("button", {onclick: () => save("actions.jsonl", page.actions)}, t("download"))] : [])});

const lines = new List("lines", {path: "/log/search", key: "lines", fields: {text: t("find.text"), client: t("find.whole_client"), since: t("find.since"), until: t("find.until")},
  choices: {level: {"": t("log.level"), info: "info", warning: "warning", error: "error"}},
  columns: {time: (one) => moment(one.time), level: (one) => el("span", {class: {warning: "warn", error: "bad"}[one.level] ?? ""}, one.level), text: (one) => one.message,
    client: (one) => (one.client_id ? sessionLink(one.client_id) : "")},
  below: (page) => (page.lines.length ? [el("button", {onclick: () => save("log.jsonl", page.lines)}, t("download"))] : [])});

const droppers = new List("droppers", {path: "/droppers", key: "droppers", fields: {q: t("find.client")},
  columns: {client: (d) => (d.client_id ? sessionLink(d.client_id) : t("droppers.others")), user: (d) => d.user, dropped: (d) => number(d.messages),
    reasons: (d) => Object.entries(d.reasons).map(([reason, count]) => `${reason} ${number(count)}`).join(", "), topic: (d) => d.topic, rule: (d) => d.rule, last: (d) => age(d.last)}});

// A file with a line of JSON for each row.
function save(name, rows) {
  const address = URL.createObjectURL(new Blob(rows.map((row) => JSON.stringify(row) + "\n")));
  el("a", {href: address, download: name}).click();
  URL.revokeObjectURL(address);
}

export const VIEWS = {
  overview: {title: t("tab.overview"), show: overview},
  clients: {title: t("tab.clients"), show: clients.show},
  sessions: {title: t("tab.sessions"), show: sessions.show},
  subscriptions: {title: t("tab.subscriptions"), show: subscriptions.show},
  retained: {title: t("tab.retained"), show: retained.show},
  groups: {title: t("tab.groups"), show: groups.show},
  links: {title: t("tab.links"), show: links},
  streams: {title: t("tab.streams"), show: streams},
  nodes: {title: t("tab.nodes"), show: nodes},
  activity: {title: t("tab.activity"), show: activity},
  hand: {title: t("hand.title"), show: hand},
  alarms: {title: t("tab.alarms"), show: alarms},
  bans: {title: t("tab.bans"), show: bans},
  connectors: {title: t("tab.connectors"), show: connectors},
  rules: {title: t("tab.rules"), show: rules},
  settings: {title: t("tab.settings"), show: settings},
  actions: {title: t("tab.actions"), show: actions.show},
  lines: {title: t("tab.lines"), show: lines.show},
  droppers: {title: t("tab.droppers"), show: droppers.show},
  waiting: {show: waiting},
  session: {show: session},
  message: {show: message},
};
