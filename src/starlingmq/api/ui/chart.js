// A chart of the last minutes or hours, with axes, and the values of one moment under the pointer or the arrow keys.
// A chart is an element that stays: ``show`` changes its lines only.

import {el, number, svg} from "./base.js";
import {t} from "./language.js";

const HIGH = 100; // of the drawing, in its own units
const STEPS = [1, 2, 2.5, 5, 10];

// The end of an axis: a round number at or above the largest value.
function round(most, base) {
  if (most <= 0) return 1;
  const unit = base === 1024 ? 1024 ** Math.floor(Math.log2(Math.max(most, 1)) / 10) : 1;
  return unit * decimal(most / unit);
}

function decimal(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return STEPS.find((step) => step * power >= most * 0.999999) * power;
}

const clock = (seconds, exact) => new Date(seconds * 1000).toLocaleTimeString([], {hourCycle: "h23", hour: "2-digit", minute: "2-digit", ...(exact && {second: "2-digit"})});

// The parts of a line between its gaps, as lists of [place, value].
function parts(values) {
  const found = [];
  let open = null;
  values.forEach((value, at) => {
    if (value === null) open = null;
    else if (open) open.push([at, value]);
    else found.push((open = [[at, value]]));
  });
  return found;
}

export class Chart {
  // ``say`` makes text of a value; ``base`` is 1024 for bytes.
  constructor(title, say, base = 10) {
    this.title = title;
    this.say = say;
    this.base = base;
    this.values = [];
    this.nodes = {};
    this.at = null;
    this.now = el("b");
    this.most = el("small", {class: "most"});
    this.told = el("small", {class: "told", role: "status"});
    this.drawing = svg("svg", {preserveAspectRatio: "none", class: "plot", role: "img", tabindex: 0});
    this.high = el("span");
    this.middle = el("span");
    this.times = el("div", {class: "times", "aria-hidden": "true"});
    this.node = el("figure", {class: "card chart"}, el("figcaption", {}, el("small", {}, title), this.now),
      el("div", {class: "drawing"}, this.drawing, el("div", {class: "ticks", "aria-hidden": "true"}, this.high, this.middle)), this.times, this.told, this.most);
    this.drawing.addEventListener("pointermove", (event) => {
      const box = this.drawing.getBoundingClientRect();
      this.point(Math.round(((event.clientX - box.left) / box.width) * (this.values.length - 1)));
    });
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.drawing.addEventListener("blur", () => this.point(null));
    this.drawing.addEventListener("keydown", (event) => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!by) return;
      event.preventDefault();
      this.point((this.at ?? this.values.length) + by);
    });
  }

  // ``nodes``: the values of each node, by its name, the last of which end at ``end``; null where there are none.
  show(end, step, nodes) {
    this.end = end;
    this.step = step;
    this.nodes = nodes;
    const lines = Object.values(nodes);
    this.values = (lines[0] ?? []).map((_, at) => {
      const there = lines.map((line) => line[at]).filter((value) => value !== null);
      return there.length ? there.reduce((sum, value) => sum + value, 0) : null;
    });
    const known = this.values.filter((value) => value !== null);
    const last = known.at(-1) ?? 0, most = Math.max(0, ...known);
    this.now.textContent = this.say(last);
    this.most.textContent = most ? t("chart.max", {value: this.say(most)}) : "";
    this.drawing.setAttribute("aria-label", t("chart.label", {title: this.title, last: this.say(last), most: this.say(most)}));
    this.draw(round(most, this.base));
    this.point(this.at);
  }

  draw(top) {
    const wide = Math.max(this.values.length - 1, 1);
    const height = (value) => (HIGH - (HIGH * value) / top).toFixed(2);
    this.drawing.setAttribute("viewBox", `0 0 ${wide} ${HIGH}`);
    this.drawing.replaceChildren(...[0, HIGH / 2, HIGH].map((y) => svg("line", {x1: 0, y1: y, x2: wide, y2: y})));
    for (const part of parts(this.values)) {
      const points = part.map(([at, value]) => `${at},${height(value)}`).join(" ");
      this.drawing.append(svg("polygon", {points: `${part[0][0]},${HIGH} ${points} ${part.at(-1)[0]},${HIGH}`}), svg("polyline", {points}));
    }
    this.high.textContent = this.say(top);
    this.middle.textContent = this.say(top / 2);
    const began = this.end - wide * this.step;
    this.times.replaceChildren(...[0, 1 / 3, 2 / 3, 1].map((part) => el("span", {}, clock(began + part * (this.end - began), this.end - began < 3 * 60))));
  }

  // Say the values at one place; null: none.
  point(at) {
    this.drawing.querySelector(".pointer")?.remove();
    this.at = at === null ? null : Math.min(Math.max(at, 0), this.values.length - 1);
    if (this.at === null) {
      this.told.textContent = "";
      return;
    }
    const value = this.values[this.at];
    const when = clock(this.end - (this.values.length - 1 - this.at) * this.step, true);
    const each = Object.entries(this.nodes).map(([name, values]) => `${name} ${values[this.at] === null ? "–" : this.say(values[this.at])}`);
    this.told.textContent = `${when}: ${value === null ? "–" : this.say(value)}` + (each.length > 1 ? ` (${each.join(", ")})` : "");
    this.drawing.append(svg("line", {x1: this.at, y1: 0, x2: this.at, y2: HIGH, class: "pointer"}));
  }
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  return `${number(value / 1024 ** power)} ${UNITS[power]}`;
}
