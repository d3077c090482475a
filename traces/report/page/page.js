
// A run report.
const { report, summary } = run;
const step = report.simulated;

// Rows that are equal except for their rank are listed once, with how many they are.
function classesOf(rows, keyOf) {
  const classes = new Map();
  for (const row of rows) {
    const { rank, represents, ...rest } = row;
    const key = keyOf(rest);
    const entry = classes.get(key) ?? { row, ranks: [], count: 0 };
    entry.ranks.push(rank);
    entry.count += represents ?? 1;
    classes.set(key, entry);
  }
  return [...classes.values()];
}
const nameOf = (entry) => (entry.count === 1 ? `rank ${entry.ranks[0]}` : `rank ${entry.ranks[0]} (× ${entry.count})`);

function drawHead() {
  document.title = `${report.name}: ${ms(step.step_time_ps)} simulated`;
  document.getElementById("title").textContent = `${report.verb} ${report.name}`;
  document.getElementById("subtitle").textContent =
    `${report.parameters.toLocaleString("en")} parameters on ${report.nodes} × ${report.instance}: TP ${report.tensor_model_parallel_size} × ` +
    `PP ${report.pipeline_model_parallel_size} × DP ${report.data_parallel_size}, ${report.num_microbatches} micro-batches, ${report.precision}. ` +
    `Evidence of the times: ${step.evidence}; ${percent(step.coverage.lowered_flops_share, 1)} of the FLOPs lowered to instructions.`;
  const tiles = document.getElementById("tiles");
  const tile = (value, what) => {
    const node = add(tiles, "div", { class: "tile" });
    add(node, "b", {}, value);
    add(node, "span", {}, what);
  };
  tile(ms(step.step_time_ps), "simulated step");
  const { validity } = report;
  if (validity?.step_time_range_ms) tile(validity.step_time_range_ms.map((t) => Number(t.toPrecision(4))).join(" to ") + " ms", `its range, ${validity.status}`);
  if (validity) document.getElementById("subtitle").append(` The step is ${validity.status}: ${[...validity.reasons, validity.basis].join("; ")}.`);
  tile(Math.trunc(report.tokens_per_s).toLocaleString("en"), "tokens per second");
  tile(percent(summary.mfu, 1), "MFU of " + (summary.denominator_flops_per_s * 1e-12).toFixed(1) + " TFLOPS");
  if (summary.hfu !== undefined) tile(percent(summary.hfu, 1), "HFU");
  if (report.unused_core_share > 0) tile(percent(report.unused_core_share, 1), `of ${step.logical_cores} cores run no rank, but are paid for`);
  if (report.memory) tile(bytes(Math.max(...report.memory.ranks.map((r) => r.peak_bytes))), "peak device memory of a rank");
}

function drawBreakdown() {
  const order = ["matmul_ps", "other_compute_ps", "exposed_tp_ps", "exposed_pp_ps", "exposed_dp_ps", "exposed_cp_ps", "exposed_ep_ps", "bubble_ps", "optimizer_ps", "data_ps", "launch_ps", "host_ps", "multi_node_ps"];
  const place = (key) => (order.includes(key) ? order.indexOf(key) : order.length);
  const keys = Object.keys(step.breakdown[0]).filter((k) => k.endsWith("_ps") && k !== "total_ps" && k !== "memory_bound_ps").sort((a, b) => place(a) - place(b));
  const titles = keys.map((key) => key.slice(0, -3).replaceAll("_", " "));
  const node = section("breakdown", "Where the step goes", "One bar per class of equal ranks; a bar's parts add up to the step.");
  const classes = classesOf(step.breakdown, (row) => JSON.stringify(row));
  stackedBars(node, classes.slice(0, 64).map((c) => ({ name: nameOf(c), parts: keys.map((key, i) => ({ name: titles[i], value: c.row[key] })) })), step.step_time_ps, ms);
  legend(node, titles);
  table(node, ["rank", ...titles, "step"], classes.map((c) => [number(c.ranks[0], nameOf(c)), ...keys.map((key) => number(c.row[key], ms(c.row[key]))), number(c.row.total_ps, ms(c.row.total_ps))]));
}

function drawSchedule() {
  if (!run.schedule) return;
  const schedule = run.schedule;
  const node = section("schedule", "Pipeline schedule", `Blue: forward, green: backward, grey: idle. Costs: ${schedule.costs_from}. Bubble ${percent(schedule.bubble, 1)}; ` +
    `equal stages: ${percent(schedule.bubble_of_equal_stages, 1)}.`);
  const svg = add(node, "svg", { viewBox: `0 0 1200 ${26 * schedule.ranks.length + 6}` });
  schedule.ranks.forEach((rank, r) => {
    const y = 26 * r + 3;
    add(svg, "text", { x: 0, y: y + 15 }, `stage ${rank.rank}`);
    add(svg, "rect", { x: 70, y, width: 1120, height: 22, fill: "#e6e8ed" });
    for (const slot of rank.slots) {
      const x = 70 + slot.start / schedule.end * 1120, width = (slot.end - slot.start) / schedule.end * 1120;
      const light = 60 - 30 * slot.chunk / schedule.virtual_pipeline_model_parallel_size;
      const bar = add(svg, "rect", { x, y, width, height: 22, stroke: "#ffffff", "stroke-width": 0.4, fill: `hsl(${slot.pass === "forward" ? 210 : 130},50%,${light}%)` });
      const time = schedule.unit === "ps" ? ms(slot.end - slot.start) : percent(slot.end - slot.start, schedule.end);
      add(bar, "title", {}, `${slot.pass} of micro-batch ${slot.microbatch}, chunk ${slot.chunk}: ${time}`);
      if (width > 16) add(svg, "text", { x: x + width / 2, y: y + 15, "text-anchor": "middle", style: "fill:#ffffff" }, slot.microbatch);
    }
  });
}

function drawAttribution() {
  if (!step.attribution) return;
  const node = section("attribution", "By phase, component and operator", `The step of rank ${step.attribution.rank}; click a title to sort.`);
  const rows = [...step.attribution.rows].sort((a, b) => b.time_ps - a.time_ps);
  table(node, ["phase", "component", "operator", "kind", "time", "share", "count"], rows.map((r) => [text(r.phase), text(r.component), text(r.operator), text(r.kind),
    number(r.time_ps, ms(r.time_ps)), number(r.time_ps, percent(r.time_ps, step.step_time_ps)), number(r.count, r.count.toLocaleString("en"))]));
}

function drawCommunication() {
  if (summary.communication.length === 0) return;
  const node = section("communication", "Communication, hidden and exposed", "From all participants being there to the end; exposed: the rank waits meanwhile.");
  table(node, ["axis", "communications", "transfer", "hidden", "exposed", "hidden share"], summary.communication.map((c) => [text(c.axis), number(c.count, c.count.toLocaleString("en")),
    number(c.transfer_ps, ms(c.transfer_ps)), number(c.hidden_ps, ms(c.hidden_ps)), number(c.exposed_ps, ms(c.exposed_ps)), number(c.hidden_ps / Math.max(c.transfer_ps, 1), percent(c.hidden_ps, c.transfer_ps))]));
}

function drawMemory() {
  if (!report.memory) return;
  const node = section("memory", "Device memory at each rank's peak", "One bar per class of equal ranks, against the fullest one; capacity " + bytes(report.memory.ranks[0].capacity_bytes) + ".");
  const classes = classesOf(report.memory.ranks, (row) => JSON.stringify([row.at_peak, row.peak_phase]));
  const keys = Object.keys(report.memory.ranks[0].at_peak);
  const whole = Math.max(...report.memory.ranks.map((r) => r.peak_bytes), 1);
  stackedBars(node, classes.slice(0, 64).map((c) => ({ name: nameOf(c), parts: keys.map((key) => ({ name: key.replace("_bytes", ""), value: c.row.at_peak[key] })) })), whole, bytes);
  legend(node, keys.map((key) => key.replace("_bytes", "").replaceAll("_", " ")));
  table(node, ["rank", ...keys.map((key) => key.replace("_bytes", "").replaceAll("_", " ")), "peak", "phase"],
    classes.map((c) => [number(c.ranks[0], nameOf(c)), ...keys.map((key) => number(c.row.at_peak[key], bytes(c.row.at_peak[key]))), number(c.row.peak_bytes, bytes(c.row.peak_bytes)), text(c.row.peak_phase)]));
}

function drawMemoryTimeline() {
  if (!run.memory_timeline) return;
  const events = run.memory_timeline.events;
  const node = section("memory-timeline", `Device memory of rank ${run.memory_timeline.rank} over its operations`, `${events.length.toLocaleString("en")} events of the allocator` +
    `${run.memory_timeline.dropped_events > 0 ? `, the latest; ${run.memory_timeline.dropped_events.toLocaleString("en")} before them were not kept` : ""}. Grey line: reserved, blue: allocated; bands: phases.`);
  const most = Math.max(...events.map((e) => e.reserved), 1), last = Math.max(...events.map((e) => e.op), 1), first = events.length ? events[0].op : 0;
  const svg = add(node, "svg", { viewBox: "0 0 1200 220" });
  const at = (e) => 60 + (e.op - first) / Math.max(last - first, 1) * 1130;
  const phases = [...new Set(events.map((e) => e.phase ?? ""))];
  for (let i = 0; i < events.length;) {
    let end = i + 1;
    while (end < events.length && events[end].phase === events[i].phase) ++end;
    const band = add(svg, "rect", { x: at(events[i]).toFixed(1), y: 10, width: Math.max(at(events[Math.min(end, events.length - 1)]) - at(events[i]), 0.5).toFixed(1), height: 190,
      fill: COLORS[phases.indexOf(events[i].phase ?? "") % COLORS.length], "fill-opacity": 0.15 });
    add(band, "title", {}, events[i].phase || "between phases");
    i = end;
  }
  for (const [key, color] of [["reserved", COLORS[5]], ["allocated", COLORS[0]]]) {
    const points = events.map((e) => `${at(e).toFixed(1)},${(200 - e[key] / most * 190).toFixed(1)}`);
    add(svg, "polyline", { points: points.join(" "), fill: "none", stroke: color, "stroke-width": 1.2 });
  }
  add(svg, "text", { x: 0, y: 14 }, bytes(most));
  add(svg, "text", { x: 0, y: 204 }, "0 B");
  legend(node, phases.map((phase) => phase || "between phases"));
}

// Chips as boxes, one grid per node; each named link of a chip is a stub whose colour says how long of the step it was busy.
function drawTopology() {
  const chips = new Map();
  for (const link of step.links) {
    const match = /^(node\d+)\.(chip\d+)\.(.*)$/.exec(link.name);
    if (!match) continue;
    const key = `${match[1]}.${match[2]}`;
    if (!chips.has(key)) chips.set(key, { node: match[1], chip: match[2], links: [] });
    chips.get(key).links.push({ ...link, end: match[3] });
  }
  if (chips.size === 0) return;
  const share = (link) => link.busy_us * 1e6 / Math.max(step.step_time_ps, 1);
  const worst = Math.max(...step.links.map(share), 1e-12);
  const node = section("topology", "Chips and the load of their links", `Shown are links that carried something; colour: time busy, red is ${percent(worst, 1)} of the step.`);
  const order = [...chips.values()].sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true }) || a.chip.localeCompare(b.chip, "en", { numeric: true })).slice(0, 256);
  const columns = 8, rows = Math.ceil(order.length / columns);
  const svg = add(node, "svg", { viewBox: `0 0 1200 ${rows * 96 + 6}` });
  order.forEach((chip, i) => {
    const x = (i % columns) * 150 + 4, y = Math.floor(i / columns) * 96 + 4;
    add(svg, "rect", { x, y, width: 140, height: 88, rx: 5, fill: "#f4f6f9", stroke: "#c3c9d4" });
    add(svg, "text", { x: x + 6, y: y + 14 }, `${chip.node} ${chip.chip}`);
    chip.links.slice(0, 6).forEach((link, l) => {
      const load = share(link) / worst;
      const bar = add(svg, "rect", { x: x + 6, y: y + 20 + 11 * l, width: 4 + 124 * load, height: 9, fill: `hsl(${210 - 210 * load},65%,50%)` });
      add(bar, "title", {}, `${link.name}: busy ${ms(link.busy_us * 1e6)}, ${bytes(link.size_bytes)}`);
    });
  });
  table(node, ["link", "busy", "of the step", "bytes"], step.links.map((l) => [text(l.name), number(l.busy_us, ms(l.busy_us * 1e6)), number(share(l), percent(share(l), 1)), number(l.size_bytes, bytes(l.size_bytes))]));
}

function drawPrograms() {
  const node = section("programs", "Programs", "Compiled graphs that the ranks launched; time: one run on one core.");
  table(node, ["program", "hash", "launches", "time", "time × launches", "instructions", "FLOPs"], step.programs.map((p) => [text(p.name), text(p.hash), number(p.launches, p.launches.toLocaleString("en")),
    number(p.device_time_us, ms(p.device_time_us * 1e6)), number(p.device_time_us * p.launches, ms(p.device_time_us * p.launches * 1e6)),
    number(p.instructions ?? 0, (p.instructions ?? 0).toLocaleString("en")), number(p.flops ?? 0, (p.flops ?? 0).toLocaleString("en"))]));
}

for (const draw of [drawHead, drawSchedule, drawBreakdown, drawAttribution, drawCommunication, drawMemory, drawMemoryTimeline, drawTopology, drawPrograms]) draw();
document.body.dataset.drawn = "true";
