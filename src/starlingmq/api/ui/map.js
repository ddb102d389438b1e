// The nodes of a cluster in a circle, and the links between them.

import {api, el, goneFor, heading, mark, maybe, missing, number, svg, table} from "./base.js";
import {t} from "./language.js";

const SIZE = 420;
const MIDDLE = SIZE / 2;

// Links as the asked node sees its own, where nobody tells those of all.
function own(all) {
  const here = all.members.find((one) => one.this);
  return all.members.filter((one) => !one.this).map((one) => ({
    node: here?.name ?? all.node, peer: one.name, connected: one.connected, through: one.through, queued: one.queued,
    unacknowledged: one.unacknowledged,
  }));
}

// A line for each two: as bad as the worse of its two directions.
function pairs(links) {
  const found = new Map();
  for (const link of links) {
    const ends = [link.node, link.peer].sort();
    const key = JSON.stringify(ends);
    const line = found.get(key) ?? {ends, connected: true, through: "", queued: 0, round_trip_ms: null, served: false};
    line.connected &&= link.connected;
    line.through ||= link.through;
    line.queued += link.queued ?? 0;
    if (link.round_trip_ms != null) line.round_trip_ms = Math.max(line.round_trip_ms ?? 0, link.round_trip_ms);
    found.set(key, line);
  }
  return [...found.values()];
}

const state = (line) => (line.served ? "relayed" : line.connected && !line.through ? "good" : line.through ? "relayed" : "cut");

// A link to a node that is gone is none, even if another node answers in its place.
function toNodesThatAreThere(lines, gone) {
  for (const line of lines) {
    const lost = line.ends.map((name) => gone.get(name)).filter(Boolean);
    if (!lost.length) continue;
    line.served = lost.every((one) => one.served_by);
    line.connected &&= line.served;
    line.round_trip_ms = null;
  }
  return lines;
}

function drawn(members, lines, gone) {
  const places = new Map(members.map((one, at) => {
    const angle = (2 * Math.PI * at) / members.length - Math.PI / 2;
    const far = members.length > 1 ? MIDDLE - 70 : 0;
    return [one.name, {x: MIDDLE + far * Math.cos(angle), y: MIDDLE + far * Math.sin(angle)}];
  }));
  const low = Math.max(...[...places.values()].map((place) => place.y)) + 60;
  const high = Math.min(...[...places.values()].map((place) => place.y)) - 40;
  const picture = svg("svg", {viewBox: `0 ${high} ${SIZE} ${low - high}`, class: "map", role: "img", "aria-label": t("map.label")});
  for (const line of lines) {
    const [from, to] = line.ends.map((name) => places.get(name));
    if (!from || !to) continue;
    picture.append(svg("line", {x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: "link " + state(line)}));
    const said = [line.through ? t("map.through", {node: line.through}) : "", line.round_trip_ms != null ? number(line.round_trip_ms) + " ms" : "",
      line.queued ? t("map.queued", {count: number(line.queued)}) : ""].filter(Boolean).join(", ");
    if (said) picture.append(svg("text", {x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 - 4}, said));
  }
  for (const one of members) {
    const place = places.get(one.name);
    const lost = gone.get(one.name);
    const health = lost?.served_by ? "relayed" : lost || !one.online || !one.connected ? "cut" : one.draining ? "relayed" : "good";
    picture.append(svg("circle", {cx: place.x, cy: place.y, r: 26, class: "node " + health}));
    picture.append(svg("text", {x: place.x, y: place.y + 5, class: "count"}, number(one.clients ?? 0)));
    picture.append(svg("text", {x: place.x, y: place.y + 42}, one.name));
  }
  return el("figure", {}, picture, el("figcaption", {}, t("map.legend")));
}

const STATES = {
  "away": "copies.away", "catching up": "copies.catching.up", "following": "copies.following", "in step": "copies.in.step",
};

// How far a follower is: only the node that serves the data knows it.
function followed(one) {
  const state = t(STATES[one.state] ?? "copies.unknown");
  const part = one.total ? ` ${Math.min(99, Math.floor((100 * one.sent) / one.total))} %` : "";
  const behind = one.behind_seconds == null ? "" : t("copies.behind", {bytes: number(one.behind_bytes), seconds: number(one.behind_seconds)});
  return `${one.node}: ${state}${one.state === "catching up" ? part : ""}${one.behind_bytes ? ", " + behind : ""}`;
}

// Whose data is stored where, and what would be lost with a node now.
function copies(found) {
  if (!found || found.copies < 2) return [];
  return [heading(t("copies.heading", {count: number(found.copies)})),
    table({node: (one) => one.node, "served by": (one) => (one.server === one.node ? one.node : el("span", {class: "bad"}, one.server || "–")),
      "in step": (one) => one.in_step.join(", "),
      followers: (one) => el("span", {}, ...one.followers.map((each) => el("div", {}, followed(each)))),
      "lost with it now": (one) => {
        const risk = one.unserved || one.refused || one.at_risk;
        return risk ? el("span", {class: "bad"}, risk) : t("copies.nothing");
      }}, found.nodes)];
}

export async function nodes() {
  const all = await api("/nodes");
  const copied = all.cluster ? await maybe("/copies") : null;
  const told = all.cluster ? await maybe("/peers") : null;
  const links = told?.peers ?? own(all);
  const gone = new Map((all.health?.gone ?? []).map((one) => [one.name, one]));
  return [heading(all.cluster ? t("map.cluster", {name: all.cluster}) : t("map.single")), missing(all), missing(told),
    all.health?.status === "degraded" ? el("p", {class: "bad"}, t("map.next", {summary: all.health.summary, next: all.health.next})) : "",
    all.waits_for ? el("p", {class: "bad"}, t("map.waits", {reason: all.waits_for})) : "",
    drawn(all.members, toNodesThatAreThere(pairs(links), gone), gone),
    table({node: (n) => n.name + (n.this ? ` (${t("bans.node")})` : ""), version: (n) => n.version, online: (n) => mark(n.online && !gone.has(n.name)),
      state: (n) => (gone.has(n.name) ? el("span", {class: "bad"}, goneFor(gone.get(n.name))) : mark(n.connected, t("connected"), t("connected.not"))),
      clients: (n) => number(n.clients ?? 0), draining: (n) => (n.draining ? t("yes") : ""), address: (n) => el("span", {class: "whole"}, n.address ?? "–")}, all.members),
    ...copies(copied),
    ...(links.length ? [heading(t("map.links")),
      table({from: (l) => l.node, to: (l) => l.peer, connected: (l) => mark(l.connected), through: (l) => l.through,
        "round trip (ms)": (l) => (l.round_trip_ms == null ? "–" : number(l.round_trip_ms)),
        "last heard (s ago)": (l) => (l.heard_seconds == null ? "–" : number(l.heard_seconds)),
        waiting: (l) => number(l.queued ?? 0), unacknowledged: (l) => number(l.unacknowledged ?? 0)}, links)] : [])];
}
