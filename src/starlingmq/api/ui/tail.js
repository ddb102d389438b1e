// What is published just now: a tree of topics that grows as messages come.

import {LoginNeeded, el, heading, missing, number, send} from "./base.js";

const TOPICS_MAX = 2000; // in the tree; messages of others are shown all the same
const UNFOLDED = 50; // topics that come first show what is below them
const MESSAGES_MAX = 200;
const PAINT_MS = 250;
const AGAIN_MS = 2000;
const PAYLOAD_SIGNS = 200;

// Server-sent events by fetch, which can say who asks. Ends when the stream does; throws what fetch throws.
export async function* events(path, parameters, signal) {
  const answer = await send("GET", path, parameters, undefined, signal);
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error), {status: answer.status});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const {done, value} = await reader.read();
    if (done) return;
    const blocks = (rest + value.replaceAll("\r\n", "\n")).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const of = (name) => lines.filter((line) => line.startsWith(name + ":")).map((line) => line.slice(name.length + 1).trimStart());
      const data = of("data").join("\n");
      if (data) yield {name: of("event")[0] ?? "message", data: JSON.parse(data)};
    }
  }
}

class Topic {
  constructor(level) {
    this.level = level;
    this.count = 0;
    this.last = "";
    this.below = new Map();
  }
}

const shown = (message) => (message.payload ?? `(${message.size} bytes)`).slice(0, PAYLOAD_SIGNS);

export class Tail {
  constructor(parameters) {
    this.filter = parameters.filter || "#";
    this.root = new Topic("");
    this.topics = 0;
    this.messages = [];
    this.dropped = 0;
    this.open = new Set([""]); // what is unfolded, by path
    this.aborter = null;
    this.changed = true;
    this.field = el("input", {value: this.filter, "aria-label": "Topic filter", onchange: () => {
      location.hash = "#topics?" + new URLSearchParams({filter: this.field.value || "#"});
    }});
    this.button = el("button", {onclick: () => (this.aborter ? this.stop() : this.start())}, "Pause");
    this.state = el("span", {class: "faint", id: "tail-state", role: "status"});
    this.missing = el("div");
    this.tree = el("div", {class: "tree", id: "tree"});
    this.list = el("div", {class: "lines", id: "messages"});
    this.whole = [el("div", {class: "tools"}, this.field, this.button, this.state), this.missing,
      el("div", {class: "halves"}, el("section", {}, heading("Topics"), this.tree), el("section", {}, heading("Messages"), this.list))];
  }

  show() {
    this.painting = setInterval(() => this.paint(), PAINT_MS);
    this.start();
    return this.whole;
  }

  leave() {
    clearInterval(this.painting);
    clearTimeout(this.again);
    this.stop();
  }

  stop() {
    this.aborter?.abort();
    this.aborter = null;
    this.button.textContent = "Go on";
    this.say("paused");
  }

  say(text, mark = "faint") {
    this.state.textContent = text;
    this.state.className = mark;
  }

  async start() {
    const mine = (this.aborter = new AbortController());
    this.button.textContent = "Pause";
    this.say("waits for messages");
    try {
      for await (const {name, data} of events("/api/v1/tail", {filter: this.filter}, mine.signal)) {
        if (name === "message") this.take(data);
        else if (name === "dropped") this.dropped += data.count;
        else if (name === "missing") this.missing.replaceChildren(missing({missing: data}));
        else if (name === "ready") this.say("live, seen from " + data.node, "ok");
      }
      throw new TypeError("it has ended");
    } catch (error) {
      if (mine.signal.aborted) return;
      const over = error.status === 404 || error.status === 400;
      this.say(error instanceof TypeError ? "the broker does not answer" : error.message, "bad");
      if (!over && !(error instanceof LoginNeeded)) this.again = setTimeout(() => this.aborter === mine && this.start(), AGAIN_MS);
    }
  }

  take(message) {
    this.changed = true;
    this.messages.push(message);
    if (this.messages.length > MESSAGES_MAX) this.messages.shift();
    let topic = this.root;
    let path = "";
    topic.count++;
    for (const level of message.topic.split("/")) {
      path += "/" + level;
      let next = topic.below.get(level);
      if (!next) {
        if (this.topics >= TOPICS_MAX) return;
        this.topics++;
        if (this.topics <= UNFOLDED) this.open.add(path);
        topic.below.set(level, (next = new Topic(level)));
      }
      next.count++;
      topic = next;
    }
    topic.last = shown(message);
  }

  branch(topic, path) {
    const name = el("span", {}, topic.level || (path ? "(empty)" : "all"), el("small", {}, " " + number(topic.count)));
    if (!topic.below.size) return el("div", {class: "leaf"}, name, el("code", {}, topic.last));
    const box = el("details", {open: this.open.has(path), ontoggle: () => {
      if (box.open === this.open.has(path)) return;
      if (box.open) this.open.add(path); else this.open.delete(path);
      this.changed = true;
    }}, el("summary", {}, name, el("code", {}, topic.last)));
    if (this.open.has(path)) {
      const below = [...topic.below.values()].sort((a, b) => a.level.localeCompare(b.level));
      box.append(...below.map((one) => this.branch(one, path + "/" + one.level)));
    }
    return box;
  }

  paint() {
    if (!this.changed) return;
    this.changed = false;
    this.tree.replaceChildren(this.branch(this.root, ""),
      this.topics >= TOPICS_MAX ? el("p", {class: "bad"}, `only ${number(TOPICS_MAX)} topics are shown: take a narrower filter`) : "");
    this.list.replaceChildren(this.dropped ? el("p", {class: "bad"}, `${number(this.dropped)} more came than are shown`) : "",
      ...this.messages.slice().reverse().map((one) => el("div", {}, el("small", {}, `${one.at?.slice(11, 23) ?? ""} QoS ${one.qos} `), el("b", {}, one.topic),
        one.retain ? el("small", {}, " retained") : "", el("code", {}, shown(one)))));
  }
}
