
// What a run costs, on one instance or on several.
const { runs, refused } = run;
const days = (seconds) => (seconds >= 86400 ? (seconds / 86400).toFixed(2) + " days" : seconds >= 3600 ? (seconds / 3600).toFixed(2) + " h" : seconds.toFixed(1) + " s");
const money = (amount, currency) => amount.toLocaleString("en", { maximumFractionDigits: amount >= 1000 ? 0 : 2 }) + " " + currency;
const nameOf = (one) => `${one.nodes} × ${one.instance}`;
const unused = (one) => (one.unused_core_share === undefined ? text("unknown") : number(one.unused_core_share, (100 * one.unused_core_share).toFixed(2) + " %"));

function drawHead() {
  const first = runs[0];
  document.title = "cost of " + first.source;
  document.getElementById("title").textContent = "cost of " + first.source;
  document.getElementById("subtitle").textContent = `${first.tokens.toPrecision(4)} tokens; prices of ${first.prices_date} (${first.prices_file}). Evidence of the step times: ${first.evidence}.`;
  const tiles = document.getElementById("tiles");
  const tile = (value, what) => {
    const node = add(tiles, "div", { class: "tile" });
    add(node, "b", {}, value);
    add(node, "span", {}, what);
  };
  const offers = runs.flatMap((one) => Object.entries(one.cases[0].cost).map(([paying, cost]) => ({ one, paying, cost }))).sort((a, b) => a.cost - b.cost);
  tile(money(offers[0].cost, offers[0].one.currency), `the cheapest: ${nameOf(offers[0].one)}, ${offers[0].paying}`);
  tile(days(Math.min(...runs.map((one) => one.cases[0].total_s))), "the fastest");
  for (const one of runs) if (one.unused_core_share > 0) tile((100 * one.unused_core_share).toFixed(2) + " %", `of the cores of ${nameOf(one)} run no rank, but are paid for`);
}

function drawMoney() {
  const node = section("money", "Money", "Click a title to sort. An example price is no price: replace it in the price file.");
  const rows = runs.flatMap((one) => one.cases.flatMap((c) => one.prices.map((plan) => {
    const cost = c.cost[plan.name], idle = c.cost_of_unused_cores[plan.name];
    return [text(nameOf(one)), text(c.name), text(plan.name + (plan.example ? " (example price)" : "")), number(cost, money(cost, one.currency)), unused(one),
      idle === undefined ? text("unknown") : number(idle, money(idle, one.currency)), number(cost / one.tokens * 1e6, (cost / one.tokens * 1e6).toFixed(4)), number(c.total_s, days(c.total_s)),
      number(c.node_hours, c.node_hours.toFixed(1)), text(plan.source)];
  })));
  table(node, ["machine", "case", "paying", "cost", "cores without a rank", "of the cost for them", "per million tokens", "time", "node-hours", "source of the price"], rows);
}

function drawTime() {
  const node = section("time", "Where the time goes", "One bar for each machine and case; a bar's parts add up to the run.");
  const parts = [["steps_s", "training steps"], ["validation_s", "validation"], ["checkpoints_s", "writing checkpoints"], ["lost_work_s", "lost work"], ["restarts_s", "restarts"]];
  const bars = runs.flatMap((one) => one.cases.map((c) => ({ name: `${nameOf(one)}, ${c.name}`, parts: parts.map(([key, name]) => ({ name, value: c[key] })), total: c.total_s })));
  stackedBars(node, bars, Math.max(...bars.map((bar) => bar.total)), days);
  legend(node, parts.map(([, name]) => name));
}

function drawNotes() {
  const notes = [...new Set(runs.flatMap((one) => one.notes)), ...refused.map((each) => `not possible on ${each.instance}: ${each.reason}`)];
  if (notes.length === 0) return;
  const node = section("notes", "Notes");
  for (const note of notes) add(node, "p", {}, note);
}

for (const draw of [drawHead, drawMoney, drawTime, drawNotes]) draw();
document.body.dataset.drawn = "true";
