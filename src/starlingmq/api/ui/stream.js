// What goes on until it is stopped: server-sent events, by fetch, which can say who asks.

import {LoginNeeded, el, missing, number, send} from "./base.js";
import {t} from "./language.js";

const PAINT_MS = 250;
const AGAIN_MS = 2000;

// Ends when the stream does; throws what fetch throws.
async function* events(path, parameters, signal) {
  const answer = await send("GET", path, parameters, undefined, signal);
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error), {status: answer.status});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const {done, value} = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const of = (name) => lines.filter((line) => line.startsWith(name + ":")).map((line) => line.slice(name.length + 1).trimStart());
      const data = of("data").join("\n");
      if (data) yield {name: of("event")[0] ?? "message", data: JSON.parse(data)};
    }
  }
}

// A view of such events: below this, ``take`` is given each of them, and ``paint`` shows what has changed. It begins again
// when the broker has been away.
export class Stream {
  constructor(path, parameters) {
    this.path = path;
    this.parameters = parameters;
    this.dropped = 0;
    this.aborter = null;
    this.changed = true;
    this.button = el("button", {onclick: () => (this.aborter ? this.stop() : this.start())}, t("stream.pause"));
    this.state = el("span", {class: "faint", id: "stream-state", role: "status"});
    this.away = el("div");
    this.left = el("p", {class: "bad"});
  }

  show() {
    this.painting = setInterval(() => {
      if (!this.changed) return;
      this.changed = false;
      this.left.textContent = this.dropped ? t("stream.dropped", {count: number(this.dropped)}) : "";
      this.paint();
    }, PAINT_MS);
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
    this.button.textContent = t("stream.continue");
    this.say(t("stream.paused"));
  }

  say(text, mark = "faint") {
    this.state.textContent = text;
    this.state.className = mark;
  }

  async start() {
    const mine = (this.aborter = new AbortController());
    this.button.textContent = t("stream.pause");
    this.say(t("stream.begins"));
    try {
      for await (const {name, data} of events(this.path, this.parameters, mine.signal)) {
        if (name === "dropped") this.dropped += data.count;
        else if (name === "missing") this.away.replaceChildren(missing({missing: data}));
        else if (name === "ready") this.say(t("stream.live", {node: data.node}), "ok");
        else this.take(data);
        this.changed = true;
      }
      throw new TypeError("the stream has ended");
    } catch (error) {
      if (mine.signal.aborted) return;
      this.say(error instanceof TypeError ? t("no_answer") : error.message, "bad");
      if (error instanceof LoginNeeded || error.status === 400 || error.status === 403 || error.status === 404) return;
      this.again = setTimeout(() => this.aborter === mine && this.start(), AGAIN_MS);
    }
  }
}
