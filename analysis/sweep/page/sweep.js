
// A sweep: every layout with its status, the simulated ones as a picture.
const { sweep } = run;
const simulated = sweep.rows.filter((row) => row.step_time_ps !== null);
const best = Math.min(...simulated.map((row) => row.step_time_ps));
const onFront = new Set(sweep.pareto);

function drawHead() {
  const { space, counts } = sweep;
  document.title = `${space.config}: ${space.candidates.toLocaleString("en")} layouts`;
  document.getElementById("title").textContent = `sweep of ${space.config}`;
  document.getElementById("subtitle").textContent =
    `${space.candidates.toLocaleString("en")} candidates on ${space.nodes.join(" or ")} × ${space.instance}, ${space.ranks_per_node} ranks each, global batch ${space.global_batch_size}` +
    (space.shard === "1/1" ? "" : `, shard ${space.shard}`) + ". " +
    (run.left_out > 0 ? `${run.left_out.toLocaleString("en")} candidates that were not simulated are left out here: --csv has them.` : "Every candidate is in the table below.");
  const tiles = document.getElementById("tiles");
  const tile = (value, what) => {
    const node = add(tiles, "div", { class: "tile" });
    add(node, "b", {}, value);
    add(node, "span", {}, what);
  };
  if (simulated.length > 0) tile(ms(best), "fastest step");
  if (space.unused_core_share > 0) tile((100 * space.unused_core_share).toFixed(2) + " %", `of the ${space.logical_cores_per_node} cores of a node run no rank, but are paid for`);
  for (const [status, count] of Object.entries(counts)) tile(count.toLocaleString("en"), status);
}

// Step time against peak memory; the line joins the front of each number of nodes.
function drawFront() {
  if (simulated.length === 0) return;
  const node = section("pareto", "Step time and peak memory", "One point per simulated layout; red: no other has less of one of step time, memory and nodes without more of another. " +
    `Step times are ${simulated[0].evidence}.`);
  const svg = add(node, "svg", { viewBox: "0 0 1200 440" });
  const slowest = Math.max(...simulated.map((row) => row.step_time_ps)), fullest = Math.max(...simulated.map((row) => row.peak_bytes));
  const x = (row) => 90 + row.step_time_ps / slowest * 1090, y = (row) => 400 - row.peak_bytes / fullest * 380;
  add(svg, "path", { d: "M90 20V400H1180", fill: "none", stroke: "#7d8694" });
  for (let i = 0; i <= 4; ++i) {
    add(svg, "text", { x: 90 + 1090 * i / 4, y: 418, "text-anchor": i === 4 ? "end" : "middle" }, ms(slowest * i / 4));
    add(svg, "text", { x: 84, y: 404 - 380 * i / 4, "text-anchor": "end" }, bytes(Math.round(fullest * i / 4)));
  }
  for (const nodes of sweep.space.nodes) {
    const front = simulated.filter((row) => row.nodes === nodes && onFront.has(row.index)).sort((a, b) => a.step_time_ps - b.step_time_ps);
    add(svg, "polyline", { points: front.map((row) => `${x(row).toFixed(1)},${y(row).toFixed(1)}`).join(" "), fill: "none", stroke: "#d04020", "stroke-width": 1 });
  }
  for (const row of [...simulated].sort((a, b) => onFront.has(a.index) - onFront.has(b.index))) {
    const marked = onFront.has(row.index);
    const point = add(svg, "circle", { cx: x(row).toFixed(1), cy: y(row).toFixed(1), r: marked ? 6 : 4, fill: marked ? "#d04020" : "#4070b0", "fill-opacity": 0.8 });
    add(point, "title", {}, `${row.layout}, ${row.nodes} nodes: ${ms(row.step_time_ps)}, ${bytes(row.peak_bytes)}`);
  }
}

function drawLayouts() {
  const node = section("layouts", "Layouts", "Click a title to sort. Range: nine of ten published steps lie that close to their predictions; exploratory: outside of what they cover. " +
    "The bound is a time that no simulation of the layout falls below.");
  const none = { text: "", value: null };
  const some = (value, shown) => (value === null ? none : number(value, shown(value)));
  const range = (row) => (row.step_time_least_ps === null ? none : number(row.step_time_most_ps, `${ms(row.step_time_least_ps)} to ${ms(row.step_time_most_ps)}${row.validity === "exploratory" ? ", exploratory" : ""}`));
  const rows = [...sweep.rows].sort((a, b) => (a.step_time_ps ?? Infinity) - (b.step_time_ps ?? Infinity) || (a.bound_ps ?? Infinity) - (b.bound_ps ?? Infinity) || a.index - b.index);
  table(node, ["layout", "nodes", "status", "step", "range", "to the fastest", "MFU", "peak memory", "bottleneck", "bound", "Pareto", "reason"], rows.map((row) => [text(row.layout), number(row.nodes, String(row.nodes)),
    text(row.status), some(row.step_time_ps, ms), range(row), some(row.step_time_ps, (ps) => `+${(100 * (ps / best - 1)).toFixed(2)} %`), some(row.mfu, (mfu) => `${(100 * mfu).toFixed(2)} %`),
    some(row.peak_bytes, bytes), text(row.bottleneck ?? ""), some(row.bound_ps, ms), text(onFront.has(row.index) ? "*" : ""), text(row.reason ?? "")]));
}

// Money of the layouts of all numbers of nodes, when prices were given.
function drawRanking() {
  const { ranking } = sweep;
  if (!ranking) return;
  const node = section("ranking", `Ranked by ${ranking.by}`, `At ${ranking.paying} ${ranking.per_node_hour} ${ranking.currency} per node and hour${ranking.example_price ? ", an EXAMPLE price" : ""}, prices of ${ranking.prices_date}.`);
  const rowOf = new Map(simulated.map((row) => [row.index, row]));
  const some = (value, shown) => (value === undefined ? { text: "", value: null } : number(value, shown(value)));
  table(node, ["#", "layout", "nodes", "step", "per million tokens", "days", "cost", "in time"], ranking.rows.map((entry, i) => {
    const row = rowOf.get(entry.index);
    return [number(i + 1, String(i + 1)), text(row.layout), number(row.nodes, String(row.nodes)), number(row.step_time_ps, ms(row.step_time_ps)),
      number(entry.cost_per_million_tokens, entry.cost_per_million_tokens.toPrecision(4)), some(entry.run_s, (s) => (s / 86400).toFixed(2)),
      some(entry.cost, (cost) => cost.toLocaleString("en", { maximumFractionDigits: 0 })), text(entry.in_time === undefined ? "" : entry.in_time ? "yes" : "no")];
  }));
}

function drawCommands() {
  const front = simulated.filter((row) => onFront.has(row.index)).sort((a, b) => a.step_time_ps - b.step_time_ps);
  if (front.length === 0) return;
  const node = section("commands", "The front again", "Each command gives its step time again, to the picosecond.");
  table(node, ["layout", "step", "command"], front.map((row) => [text(row.layout), number(row.step_time_ps, ms(row.step_time_ps)), text(row.command)]));
}

for (const draw of [drawHead, drawFront, drawLayouts, drawRanking, drawCommands]) draw();
document.body.dataset.drawn = "true";
