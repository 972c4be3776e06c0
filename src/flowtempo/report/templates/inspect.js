"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 480, HEIGHT = 290, LEFT = 46, RIGHT = 12, TOP = 12, BOTTOM = 44, LOW = -14, HIGH = 14;
const SVG = "http://www.w3.org/2000/svg";
const byId = id => document.getElementById(id);
const rows = [...document.querySelectorAll("[data-curve]")];
const shown = rows.map(row => row.querySelector("input"));
const charts = [["chart-p", "p"], ["chart-qw", "qw"]].map(([id, key]) => ({ svg: byId(id), key }));
let at = 0;

const factor = () => 2 ** Number(byId("std").value);
const shift = curve => 2 * Math.log(curve.std * factor());
const x = value => LEFT + (value - LOW) / (HIGH - LOW) * (WIDTH - LEFT - RIGHT);
const minus = text => String(text).replaceAll("-", "−");
const number = (value, digits) => value === null || value === undefined ? "–" : minus(Number(value.toPrecision(digits)));

function add(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

// A value of a curve at a log-SNR of the input, between the two points beside it.
function value(curve, key, logSnr) {
  const place = (logSnr - shift(curve) - curve.first) / curve.step, left = Math.floor(place);
  const [a, b] = [curve[key][left], curve[key][left + 1]];
  if (a === undefined || a === null) return null;
  return b === undefined || b === null ? (place === left ? a : null) : a + (place - left) * (b - a);
}

// The greatest value that must be seen. Where the error vanishes a weight grows without end: what lies
// beyond the bands is not counted.
function greatest(key) {
  let most = 0;
  data.curves.forEach((curve, index) => {
    if (!shown[index].checked) return;
    curve[key].forEach((each, k) => {
      const where = curve.first + k * curve.step + 2 * Math.log(curve.std);
      const counts = key === "p" || (where >= data.edges[0] && where <= data.edges[1]);
      if (each !== null && counts) most = Math.max(most, each);
    });
  });
  return 1.05 * most || 1;
}

function ticks(most) {
  const power = 10 ** Math.floor(Math.log10(most / 3)), step = [1, 2, 5, 10].map(k => k * power).find(s => most / s <= 5);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, k) => k * step);
}

function draw() {
  for (const { svg, key } of charts) {
    svg.replaceChildren();
    const most = greatest(key), y = each => HEIGHT - BOTTOM - each / most * (HEIGHT - TOP - BOTTOM);
    for (let tick = -12; tick <= HIGH; tick += 4) {
      add(svg, "line", { x1: x(tick), x2: x(tick), y1: TOP, y2: HEIGHT - BOTTOM, class: "grid" });
      add(svg, "text", { x: x(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, minus(tick));
    }
    for (const tick of ticks(most)) {
      add(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick), class: "grid" });
      add(svg, "text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick, 2));
    }
    add(svg, "text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "log-SNR of the input");
    data.curves.forEach((curve, index) => {
      if (!shown[index].checked) return;
      let path = "", pen = "M";
      curve[key].forEach((each, k) => {
        const where = curve.first + k * curve.step + shift(curve);
        if (each === null || where < LOW || where > HIGH) { pen = "M"; return; }
        path += `${pen}${x(where).toFixed(2)} ${y(Math.min(each, 2 * most)).toFixed(2)}`;
        pen = "L";
      });
      const { colour, dash } = rows[index].dataset;
      add(svg, "path", { d: path, "data-of": index, stroke: `var(--series-${colour})`, "stroke-dasharray": dash, class: "curve" });
    });
    add(svg, "line", { x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM, class: "at" });
  }
  read();
}

function read() {
  byId("at-value").textContent = minus(at.toFixed(2));
  byId("std-value").textContent = `× ${factor().toFixed(2)} (log-SNR ${minus((2 * Math.log(factor())).toFixed(2))})`;
  data.curves.forEach((curve, index) => {
    const cell = name => rows[index].querySelector(`[data-cell=${name}]`);
    for (const key of ["t", "p", "w", "qw"]) {
      const found = value(curve, key, at);
      cell(key).textContent = key === "t" && (found === null || found < 0 || found > 1) ? "–" : number(found, 4);
    }
    cell("std").textContent = number(curve.std * factor(), 3);
  });
  for (const { svg } of charts) {
    const line = svg.querySelector(".at");
    line.setAttribute("x1", x(at));
    line.setAttribute("x2", x(at));
  }
}

for (const { svg } of charts) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * WIDTH;
    at = Math.min(HIGH, Math.max(LOW, LOW + (place - LEFT) / (WIDTH - LEFT - RIGHT) * (HIGH - LOW)));
    byId("at").value = at;
    read();
  });
}
byId("at").addEventListener("input", () => { at = Number(byId("at").value); read(); });
byId("std").addEventListener("input", draw);
byId("reset").addEventListener("click", () => { byId("std").value = 0; draw(); });
shown.forEach(box => box.addEventListener("change", draw));
document.documentElement.classList.add("live");
draw();
