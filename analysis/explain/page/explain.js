
// Why a step is predicted as it is: a tornado of the constants, the nearest published rows, parts.
const { explain } = run;
const step = explain.step_time_ps;
const change = (end) => (end.change === null ? "refused" : `${end.change > 0 ? "+" : ""}${significant(100 * end.change, 3)} %`);
const constants = explain.constants.filter((each) => each.swing_ps > 0);

function drawHead() {
  document.title = `explain ${explain.name}: ${ms(step)}`;
  document.getElementById("title").textContent = `explain ${explain.name}`;
  document.getElementById("subtitle").textContent =
    `${explain.nodes} × ${explain.instance}. ${explain.validity.status}: ` +
    (explain.validity.reasons.length > 0 ? explain.validity.reasons.join("; ") + ". " : "") + explain.validity.basis +
    (explain.validity.measurement ? `. Measured to validate it: ${explain.validity.measurement}` : "");
  const tiles = document.getElementById("tiles");
  const tile = (value, what) => {
    const node = add(tiles, "div", { class: "tile" });
    add(node, "b", {}, value);
    add(node, "span", {}, what);
  };
  tile(ms(step), "predicted step");
  const range = explain.validity.step_time_range_ms;
  if (range) tile(`${significant(range[0])} to ${significant(range[1])} ms`, "range");
  tile(`${constants.length} of ${explain.constants.length}`, "constants of a range change it");
}

// One bar for each constant, from the step at one end of its range to the step at the other.
function drawTornado() {
  const bars = constants.slice(0, run.most_constants);
  if (bars.length === 0) return;
  const node = section("tornado", "Constants", "The step with each constant at the ends of its range, everything else as it is. Blue: the least value, red: the most.");
  const svg = add(node, "svg", { viewBox: `0 0 1200 ${30 * bars.length + 50}` });
  const ends = bars.flatMap((bar) => [bar.least, bar.most]).filter((end) => end.step_time_ps !== null).map((end) => end.step_time_ps);
  const least = Math.min(step, ...ends), most = Math.max(step, ...ends);
  const x = (ps) => 380 + (ps - least) / Math.max(1, most - least) * 740;
  bars.forEach((bar, i) => {
    add(svg, "text", { x: 370, y: 30 * i + 28, "text-anchor": "end" }, bar.key);
    for (const [end, color] of [[bar.least, COLORS[0]], [bar.most, COLORS[3]]]) {
      if (end.step_time_ps === null || end.step_time_ps === step) continue;
      const from = x(Math.min(step, end.step_time_ps)), to = x(Math.max(step, end.step_time_ps));
      const box = add(svg, "rect", { x: from.toFixed(1), y: 30 * i + 14, width: Math.max(1, to - from).toFixed(1), height: 20, fill: color, "fill-opacity": 0.8 });
      add(box, "title", {}, `${bar.key} = ${end.value}: ${ms(end.step_time_ps)} (${change(end)})`);
    }
  });
  add(svg, "path", { d: `M${x(step).toFixed(1)} 6V${30 * bars.length + 14}`, stroke: "#333333" });
  for (const at of [least, most]) add(svg, "text", { x: x(at).toFixed(1), y: 30 * bars.length + 36, "text-anchor": "middle" }, ms(at));
}

function drawConstants() {
  const node = section("constants", "What to measure", "Click a title to sort. What was measured: simulate --set KEY=VALUE.");
  table(node, ["constant", "value", "range", "evidence", "at least", "at most", "what narrows it", "source"], constants.map((each) => [text(each.key), text(each.value), text(each.range), text(each.evidence),
    number(each.least.change, change(each.least)), number(each.most.change, change(each.most)), text(each.measurement), text(each.source)]));
}

function drawRows() {
  const node = section("rows", "Nearest published steps", "Distance: 1 a doubling of parameters, sequence length, nodes, TP, PP, CP, DP; 1 each for other software, generation, instance, experts, LoRA; 0.1 a release.");
  table(node, ["row", "distance", "differs in", "published", "predicted", "error", "source"], explain.nearest_rows.map((row) => [text(row.id), number(row.distance, row.distance.toFixed(2)),
    text(row.differs.map((part) => `${part.what} ${part.distance.toFixed(1)}`).join(", ")), number(row.published_s, `${significant(row.published_s)} s`),
    row.predicted_s === null ? text("") : number(row.predicted_s, `${significant(row.predicted_s)} s`), row.error === null ? text("") : number(row.error, `${(100 * row.error).toFixed(1)} %`), text(row.source)]));
}

function drawParts() {
  const node = section("parts", "Parts of the step", "How far predictions of such parts are from published measurements.");
  table(node, ["part", "time", "share", "judged by", "rows", "median error", "nine of ten"], explain.parts.map((part) => [text(part.part), number(part.time_ps, ms(part.time_ps)), number(part.time_ps, percent(part.time_ps, step)),
    text(part.accuracy ? `trellis accuracy ${part.accuracy.subject}` : "no published row"), part.accuracy ? number(part.accuracy.rows, String(part.accuracy.rows)) : text(""),
    part.accuracy ? number(part.accuracy.median_error, `${(100 * part.accuracy.median_error).toFixed(1)} %`) : text(""), part.accuracy ? number(part.accuracy.p90_error, `${(100 * part.accuracy.p90_error).toFixed(1)} %`) : text("")]));
}

for (const draw of [drawHead, drawTornado, drawConstants, drawRows, drawParts]) draw();
document.body.dataset.drawn = "true";
