"use strict";
// What Trellis' pages share: they draw the JSON that is in them (element #document), without network or library.
const run = JSON.parse(document.getElementById("document").textContent);
const SVG = "http://www.w3.org/2000/svg";
const COLORS = ["#2f6fb5", "#6aa5d8", "#e08a2e", "#c9543f", "#8a5bb5", "#b9bec8", "#4a9a5c", "#7d8694", "#c2a83e", "#3aa6a0"];

// A number for people, as text_table.h writes it: so many significant digits, no exponent.
const significant = (value, digits = 4) =>
  (value === 0 ? "0" : value.toFixed(Math.min(Math.max(digits - 1 - Math.floor(Math.log10(Math.abs(value))), 0), 9)));
const ms = (ps) => {
  const size = Math.abs(ps);
  if (size >= 1e13) return significant(ps * 1e-12) + " s";
  if (size >= 1e6 || ps === 0) return significant(ps * 1e-9) + " ms";
  return size >= 1e3 ? significant(ps * 1e-3) + " ns" : ps + " ps";
};
const percent = (part, whole) => (whole === 0 ? "-" : significant(100 * part / whole, 3) + " %");
const scaled = (n, unit, name) => (n / unit).toFixed(n < 100 * unit ? 2 : 1) + " " + name;
const bytes = (n) => (n >= 2 ** 40 ? scaled(n, 2 ** 40, "TiB") : n >= 2 ** 30 ? scaled(n, 2 ** 30, "GiB") : n >= 2 ** 20 ? scaled(n, 2 ** 20, "MiB") : n.toLocaleString("en") + " B");

function add(parent, tag, attributes = {}, text = null) {
  const inSvg = tag === "svg" || parent.namespaceURI === SVG;
  const node = inSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return parent.appendChild(node);
}

function section(id, title, note) {
  const node = add(document.getElementById("content"), "section", { id });
  add(node, "h2", {}, title);
  if (note) add(node, "p", { class: "note" }, note);
  return node;
}

function legend(parent, names) {
  const box = add(parent, "div", { class: "legend" });
  names.forEach((name, i) => {
    const entry = add(box, "span");
    add(entry, "i", { style: "background:" + COLORS[i % COLORS.length] });
    entry.append(name);
  });
}

// Rows of cells {text, value}, null for none: a click on a title sorts by value, a second one the other way.
function table(parent, titles, rows) {
  const node = add(add(parent, "div", { class: "scroll" }), "table");
  const head = add(add(node, "thead"), "tr");
  const body = add(node, "tbody");
  const fill = () => {
    body.replaceChildren();
    for (const row of rows) {
      const line = add(body, "tr");
      for (const cell of row) add(line, "td", typeof cell.value === "number" ? { class: "number" } : {}, cell.text);
    }
  };
  titles.forEach((title, column) => {
    const cell = add(head, "th", typeof rows[0]?.[column].value === "number" ? { class: "number" } : {}, title);
    cell.addEventListener("click", () => {
      const up = cell.classList.contains("sorted") && !cell.classList.contains("up");
      for (const other of head.children) other.classList.remove("sorted", "up");
      cell.classList.add("sorted");
      cell.classList.toggle("up", up);
      rows.sort((a, b) => {
        const [x, y] = [a[column].value, b[column].value];
        if (x === null || y === null) return (x === null) - (y === null);  // nothing comes last, whichever way
        const order = typeof x === "number" ? y - x : String(x).localeCompare(String(y));
        return up ? -order : order;
      });
      fill();
    });
  });
  fill();
}
const text = (value) => ({ text: value, value });
const number = (value, shown) => ({ text: shown, value });

// One stacked bar per row: {name, parts: [{name, value}]}; all rows share a scale.
function stackedBars(parent, rows, whole, show) {
  const height = 22 * rows.length + 8;
  const svg = add(parent, "svg", { viewBox: `0 0 1200 ${height}` });
  rows.forEach((row, i) => {
    add(svg, "text", { x: 0, y: 22 * i + 17 }, row.name);
    let x = 150;
    row.parts.forEach((part, p) => {
      const width = Math.max(0, part.value / whole * 1040);
      const bar = add(svg, "rect", { x, y: 22 * i + 4, width, height: 17, fill: COLORS[p % COLORS.length] });
      add(bar, "title", {}, `${row.name}: ${part.name} ${show(part.value)}, ${percent(part.value, whole)}`);
      x += width;
    });
  });
}
