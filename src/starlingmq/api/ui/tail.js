// What is published just now: a tree of topics that grows as messages come.

import {el, heading, number} from "./base.js";
import {t} from "./language.js";
import {publishForm} from "./publish.js";
import {Stream} from "./stream.js";

const TOPICS_MAX = 2000; // in the tree; messages of others are shown all the same
const ROWS = 40; // a level of the tree is unfolded by itself while so many rows have room
const MESSAGES_MAX = 200;
const PAYLOAD_SIGNS = 200;
const RATE_S = 10; // messages older than this hardly count any more
const RATES_MS = 1000;

class Topic {
  constructor(level) {
    this.level = level;
    this.count = 0;
    this.last = "";
    this.below = new Map();
    this.rate = 0; // messages per second, at the time ``at``
    this.at = performance.now();
  }

  // The mean of the last seconds, in which older messages count less and less.
  rateAt(now) {
    return this.rate * Math.exp((this.at - now) / 1000 / RATE_S);
  }

  add(now) {
    this.rate = this.rateAt(now) + 1 / RATE_S;
    this.at = now;
    this.count++;
  }
}

const shown = (message) => (message.payload ?? t("size", {size: number(message.size)})).slice(0, PAYLOAD_SIGNS);

export class Tail extends Stream {
  constructor(parameters) {
    const filter = parameters.filter || "#";
    super("/api/v1/tail", {filter});
    this.root = new Topic("");
    this.topics = 0;
    this.messages = [];
    this.chosen = new Map(); // what the reader has unfolded, or folded, by path
    this.open = new Set(); // what is unfolded now, by path
    const field = el("input", {value: filter, "aria-label": t("tail.filter"), onchange: () => {
      location.hash = "#topics?" + new URLSearchParams({filter: field.value || "#"});
    }});
    this.tree = el("div", {class: "tree", id: "tree"});
    this.list = el("div", {class: "lines", id: "messages"});
    const trace = el("a", {href: "#trace?" + new URLSearchParams({topic: filter})}, t("trace"));
    this.whole = [el("div", {class: "tools"}, field, this.button, trace, this.state), publishForm(), this.away, this.left,
      el("div", {class: "halves"}, el("section", {}, heading(t("tab.topics")), this.tree), el("section", {}, heading(t("tail.messages")), this.list))];
  }

  show() {
    this.ageing = setInterval(() => { this.changed = true; }, RATES_MS);
    return super.show();
  }

  leave() {
    clearInterval(this.ageing);
    super.leave();
  }

  take(message) {
    this.messages.push(message);
    if (this.messages.length > MESSAGES_MAX) this.messages.shift();
    let topic = this.root;
    const now = performance.now();
    topic.add(now);
    for (const level of message.topic.split("/")) {
      let next = topic.below.get(level);
      if (!next) {
        if (this.topics >= TOPICS_MAX) return;
        this.topics++;
        topic.below.set(level, (next = new Topic(level)));
      }
      next.add(now);
      topic = next;
    }
    topic.last = shown(message);
  }

  // Unfold the tree level by level, as far as its rows have room, and as the reader has chosen.
  unfold() {
    this.open.clear();
    let rows = 1;
    let level = [["", this.root]];
    while (level.length) {
      const below = level.flatMap(([path, topic]) => [...topic.below.values()].map((one) => [path + "/" + one.level, one]));
      const fits = rows + below.length <= ROWS;
      if (fits) rows += below.length;
      for (const [path] of level) if (this.chosen.get(path) ?? (fits || path === "")) this.open.add(path);
      level = below.filter(([path]) => this.open.has(path.slice(0, path.lastIndexOf("/"))));
    }
  }

  branch(topic, path) {
    const name = el("span", {}, topic.level || t(path ? "empty" : "tail.all"), el("small", {}, " " + t("tail.rate", {count: number(topic.count), rate: number(topic.rateAt(performance.now()))})));
    if (!topic.below.size) return el("div", {class: "leaf"}, name, el("code", {}, topic.last));
    const box = el("details", {open: this.open.has(path), ontoggle: () => {
      if (box.open === this.open.has(path)) return;
      this.chosen.set(path, box.open);
      this.changed = true;
    }}, el("summary", {"data-path": path}, name, el("code", {}, topic.last)));
    if (this.open.has(path)) {
      const below = [...topic.below.values()].sort((a, b) => a.level.localeCompare(b.level));
      box.append(...below.map((one) => this.branch(one, path + "/" + one.level)));
    }
    return box;
  }

  paint() {
    this.unfold();
    const focused = this.tree.contains(document.activeElement) ? document.activeElement.dataset.path : undefined;
    this.tree.replaceChildren(this.branch(this.root, ""),
      this.topics >= TOPICS_MAX ? el("p", {class: "bad"}, t("tail.most", {count: number(TOPICS_MAX)})) : "");
    if (focused !== undefined) [...this.tree.querySelectorAll("summary")].find((one) => one.dataset.path === focused)?.focus({preventScroll: true});
    this.list.replaceChildren(...this.messages.slice().reverse().map((one) => el("div", {},
      el("small", {}, `${one.at?.slice(11, 23) ?? ""} QoS ${one.qos} `), el("b", {}, one.topic),
      one.retain ? el("small", {}, ` ${t("retained")}`) : "", el("code", {}, shown(one)))));
  }
}
