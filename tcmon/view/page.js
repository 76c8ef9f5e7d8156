"use strict";
// Draws the charts of the page from the data in it. Texts of the program are set as text, or escaped where the library
// reads a little HTML of its own (labels, hovers).
(async () => {
  const byId = (id) => document.getElementById(id);

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (each) => each.charCodeAt(0));
    return await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  function failed(why) {
    const box = document.createElement("p");
    box.id = "failure";
    box.setAttribute("role", "alert");
    box.textContent = why;
    document.querySelector("main").prepend(box);
    document.body.dataset.ready = "failed";
  }

  if (typeof DecompressionStream === "undefined") {
    failed("The charts need a newer browser: this one can't decompress (DecompressionStream).");
    return;
  }
  const data = JSON.parse(await unpacked("data"));
  const script = document.createElement("script");
  script.textContent = await unpacked("library");
  document.head.append(script);
  byId("library").remove();
  if (typeof Plotly === "undefined") {
    failed("The charts can't be drawn: their library did not start.");
    return;
  }

  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const number = (value) => value.toLocaleString("en-US");
  const digits = (value) => (value === 0 ? "0" : Math.abs(value) >= 0.001 && Math.abs(value) < 1e5
    ? String(Number(value.toPrecision(4))) : value.toExponential(2));
  const percent = (share) => (share > 0 && share < 0.0001 ? "<0.01 %" : (share * 100).toFixed(share < 0.01 ? 2 : 1) + " %");
  const UNITS = [["s", 1e6], ["ms", 1e3], ["µs", 1], ["ns", 1e-3]];

  function duration(us) {
    if (!us) return "0";
    const [unit, size] = UNITS.find((each) => us >= each[1] * 0.9995) || UNITS[3];
    const value = us / size;
    return (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : number(Math.round(value))) + " " + unit;
  }

  const unitOf = (us) => UNITS.find((each) => us >= each[1]) || UNITS[2];
  const middle = (values) => [...values].sort((a, b) => a - b)[values.length >> 1] || 0;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const coarse = matchMedia("(pointer: coarse)").matches;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const CONFIG = {
    responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
    plotGlPixelRatio: 1,
  };

  // --- what charts share ---

  const drawn = new Map(); // by id: how a chart is drawn again, in other colours or for another choice
  const linked = []; // ids of charts whose horizontal axis is the number of the training step

  function layout(more) {
    const axis = {
      gridcolor: color("grid"), linecolor: color("line"), zerolinecolor: color("grid"), automargin: true,
      tickfont: { color: color("faint") }, title: { font: { color: color("faint") }, standoff: 8 },
    };
    const { xaxis, yaxis, yaxis2, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: color("text"), size: 12 },
      margin: { l: 50, r: 12, t: 8, b: 36 }, hovermode: "closest", dragmode: coarse ? false : "zoom",
      hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"), font: { color: color("text") }, align: "left" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: color("text") }, bgcolor: "rgba(0,0,0,0)", traceorder: "normal" },
      xaxis: { ...axis, ...xaxis, title: { ...axis.title, text: (xaxis || {}).text } },
      yaxis: { ...axis, ...yaxis, title: { ...axis.title, text: (yaxis || {}).text } },
      ...(yaxis2 ? { yaxis2: { ...axis, ...yaxis2, title: { ...axis.title, text: yaxis2.text } } } : {}),
      ...rest,
    };
  }

  // The horizontal axis of charts over steps shows all of them, until somebody zooms.
  function allOf(role) {
    const course = data.roles[role] && data.roles[role].course;
    if (!course || !course.first.length) return null;
    const first = Math.min(...course.first), last = Math.max(...course.last), room = Math.max(0.5, (last - first) * 0.015);
    return [first - room, last + room];
  }

  // A chart is a function that makes its traces and layout; it is called again when colours or choices change.
  // `axis` is the role whose steps its horizontal axis counts.
  function chart(id, axis, make, after) {
    const box = byId(id);
    if (!box) return;
    box.all = axis && allOf(axis);
    const draw = () => {
      const [traces, more] = make();
      box.style.height = more.height ? `${more.height}px` : "";
      const range = box.seen || box.all;
      return Plotly.react(box, traces, layout({ ...more, xaxis: { ...more.xaxis, ...(range ? { range: [...range] } : {}) } }), CONFIG);
    };
    draw();
    drawn.set(id, draw);
    if (axis === "train") linked.push(id);
    if (axis) {
      box.on("plotly_relayout", (change) => {
        if (!Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
        const range = "xaxis.autorange" in change ? box.all : box.layout.xaxis.range;
        const same = axis === "train" ? linked.map(byId) : [box];
        for (const each of same) {
          const now = each.layout.xaxis.range;
          each.seen = range && [...range];
          const moved = range && (now[0] !== range[0] || now[1] !== range[1]);
          if (each.id.startsWith("times-")) drawn.get(each.id)(); // other recorded steps may be seen now
          else if (moved) Plotly.relayout(each, { "xaxis.range": [...range] });
        }
      });
    }
    if (after) after(box);
  }

  // The same by buttons and by keys as by a mouse.
  function tools(box, more) {
    const seen = () => box.layout.xaxis.range.map(Number);
    const to = (low, high) => Plotly.relayout(box, { "xaxis.range": [low, high] });
    const reset = () => box.all && to(...box.all);
    const scale = (factor) => {
      const [low, high] = seen();
      const half = ((high - low) / 2) * factor;
      const at = (low + high) / 2;
      if (box.all && half * 2 >= box.all[1] - box.all[0]) reset();
      else if (half > 1) to(at - half, at + half);
    };
    const shift = (share) => {
      const [low, high] = seen();
      const by = (high - low) * share;
      if (!box.all || (high + by > box.all[0] && low + by < box.all[1])) to(low + by, high + by);
    };
    const row = document.createElement("div");
    row.className = "tools";
    const button = (text, label, action) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.setAttribute("aria-label", label);
      made.addEventListener("click", action);
      row.append(made);
      return made;
    };
    button("+", "Zoom in", () => scale(0.5));
    button("−", "Zoom out", () => scale(2));
    button("←", "Earlier", () => shift(-0.5));
    button("→", "Later", () => shift(0.5));
    button("All", "Show all steps", reset);
    for (const [text, label, action] of more || []) button(text, label, action);
    box.before(row);
    const keys = {
      "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), ArrowLeft: () => shift(-0.25),
      ArrowRight: () => shift(0.25), "0": reset, Home: reset,
    };
    box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  // --- step times ---

  const chosen = { role: data.all.train ? "train" : "eval", n: null }; // n null: all recorded steps together
  const logarithmic = {};

  const span = (first, last) => (first === last ? `step ${number(first)}` : `steps ${number(first)} to ${number(last)}`);

  function times(role) {
    const of = data.roles[role], course = of.course, steps = data.steps[role];
    const [unit, size] = unitOf(middle(course.mean));
    const scaled = (values) => values.map((each) => each / size);
    const center = course.first.map((first, i) => (first + course.last[i]) / 2);
    const own = of.whole.n.length ? " without the evaluation in it" : "";
    const hover = course.first.map((first, i) => `${span(first, course.last[i])}${own}<br>` + (first === course.last[i]
      ? duration(course.high[i]) : `mean ${duration(course.mean[i])}<br>longest ${duration(course.high[i])}, step ` +
      `${number(course.highest[i])}<br>shortest ${duration(course.low[i])}`));
    const traces = [];
    if (of.perBucket > 1) {
      traces.push(
        { x: center, y: scaled(course.low), mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
        { x: center, y: scaled(course.high), mode: "lines", line: { width: 0.5, color: color("c0") }, fill: "tonexty",
          fillcolor: color("band"), hoverinfo: "skip", name: "shortest to longest" });
    }
    traces.push({
      x: center, y: scaled(course.mean), mode: "lines", line: { width: 1.2, color: color("c0") }, text: hover,
      hoverinfo: "text", name: of.perBucket > 1 ? `mean of ${number(of.perBucket)} steps` : "each step",
    });
    if (of.whole.n.length) {
      traces.push({
        x: of.whole.n, y: scaled(of.whole.took), mode: "markers", name: "with the evaluation in it",
        marker: { symbol: "triangle-up-open", size: 7, color: color("c2") },
        text: of.whole.n.map((n, i) => `step ${number(n)}, evaluation included<br>${duration(of.whole.took[i])}`),
        hoverinfo: "text",
      });
    }
    if (steps.n.length) {
      const own = (i) => steps.took[i] - steps.evaluated[i];
      const [places, thinned] = visible(steps.n, own, (byId(`times-${role}`) || {}).seen);
      traces.push({
        x: places.map((i) => steps.n[i]), y: places.map((i) => own(i) / size), mode: "markers",
        name: thinned ? "recorded (slowest of neighbours)" : "recorded", marker: { size: thinned ? 5 : 6, color: color("mark") },
        hoverinfo: "text", customdata: places.map((i) => steps.n[i]), meta: "recorded",
        text: places.map((i) => `step ${number(steps.n[i])}: ${duration(steps.took[i])}<br>data wait ${duration(steps.waited[i])}` +
          (steps.evaluated[i] ? `<br>evaluation ${duration(steps.evaluated[i])}` : "") +
          `<br>stage ${escaped(data.texts[steps.stage[i]])}<br>recorded because of ${escaped(data.texts[steps.reason[i]])}`),
      });
    }
    const at = chosen.role === role && chosen.n !== null ? [chosenLine()] : [];
    return [traces, {
      xaxis: { text: role === "eval" ? "evaluation step" : "step" },
      yaxis: { text: unit, type: logarithmic[role] ? "log" : "linear", rangemode: "tozero" }, shapes: at,
    }];
  }

  const MARKS = 150;

  // Places of the recorded steps within the range that is seen: all, or the slowest of each stretch if they are many.
  function visible(numbers, figure, range) {
    const places = numbers.map((_, i) => i).filter((i) => !range || (numbers[i] >= range[0] && numbers[i] <= range[1]));
    if (places.length <= 2 * MARKS) return [places, false];
    const best = new Map();
    const low = numbers[places[0]], width = (numbers[places[places.length - 1]] - low + 1) / MARKS;
    for (const i of places) {
      const stretch = Math.floor((numbers[i] - low) / width);
      if (!best.has(stretch) || figure(i) > figure(best.get(stretch))) best.set(stretch, i);
    }
    return [[...best.values()], true];
  }

  const chosenLine = () => ({
    type: "line", x0: chosen.n, x1: chosen.n, yref: "paper", y0: 0, y1: 1,
    line: { color: color("mark"), width: 1.5, dash: "dot" },
  });

  for (const role of Object.keys(data.roles)) {
    const course = data.roles[role].course;
    logarithmic[role] = Math.max(0, ...course.high) > 8 * middle(course.mean);
    chart(`times-${role}`, role, () => times(role), (box) => {
      tools(box, [["log / linear", "Logarithmic or linear times", () => {
        logarithmic[role] = !logarithmic[role];
        drawn.get(box.id)();
      }]]);
      // A double click shows all steps again, so it must be told from a click before anything moves.
      let waiting = 0, doubled = 0;
      box.on("plotly_click", (event) => {
        if (Date.now() - doubled < 320) return;
        const point = event.points.find((each) => each.data.meta === "recorded") || event.points[0];
        const n = point.data.meta === "recorded" ? point.customdata : nearest(role, point.x);
        clearTimeout(waiting);
        waiting = setTimeout(() => choose(role, n, true), 320);
      });
      box.on("plotly_doubleclick", () => {
        doubled = Date.now();
        clearTimeout(waiting);
      });
      box.addEventListener("keydown", (event) => {
        if (event.key === "[" || event.key === "]") neighbour(event.key === "[" ? -1 : 1, role);
      });
    });
  }

  const COLORS = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];

  chart("shares-train", "train", () => {
    const shares = data.roles.train.shares;
    const rest = shares.n.map((_, i) => Math.max(0, 1 - shares.parts.reduce((sum, each) => sum + each.share[i], 0)));
    const parts = [...shares.parts, { name: shares.parts.length > 2 ? "other" : "the rest of the body", share: rest }];
    const traces = parts.map((part, i) => {
      const fill = i === parts.length - 1 ? color("grid") : color(COLORS[i]);
      return {
        x: shares.n, y: part.share.map((each) => each * 100), stackgroup: "all", name: part.name, mode: "lines",
        line: { width: 0.5, color: fill }, fillcolor: fill,
        text: part.share.map((each) => `${part.name}: ${percent(each)}`), hoverinfo: "text",
      };
    });
    return [traces, {
      xaxis: { text: "step" }, yaxis: { text: "% of the time", range: [0, 100] }, hovermode: "x unified",
      shapes: chosen.role === "train" && chosen.n !== null ? [chosenLine()] : [],
    }];
  });

  // --- recorded steps ---

  const roles = Object.keys(data.all);
  const NAMES = { train: "training", eval: "evaluation" };
  let otherThreads = false;
  let level = "";

  function nearest(role, n) {
    const known = data.steps[role].n;
    return known.reduce((best, each) => (Math.abs(each - n) < Math.abs(best - n) ? each : best), known[0]);
  }

  function neighbour(by, role) {
    const known = data.steps[role || chosen.role].n;
    const at = known.indexOf(role && role !== chosen.role ? -1 : chosen.n);
    const next = at < 0 ? (by > 0 ? 0 : known.length - 1) : at + by;
    if (known[next] !== undefined) choose(role || chosen.role, known[next]);
  }

  const flameOf = () => (chosen.n === null ? data.all[chosen.role].flame
    : data.steps[chosen.role].flames[data.steps[chosen.role].n.indexOf(chosen.n)]);

  // The nodes of the chosen calls: the root, then each after the one above it.
  function nodes() {
    const flame = flameOf();
    const one = chosen.n !== null;
    const steps = data.steps[chosen.role];
    const took = one ? steps.took[steps.n.indexOf(chosen.n)] : data.all[chosen.role].took;
    const of = one ? 1 : data.all[chosen.role].steps;
    const root = { id: "all", above: null, total: otherThreads ? 0 : took, own: 0, calls: 0, below: [], depth: 0 };
    root.name = otherThreads ? "other threads" : one ? `step ${number(chosen.n)}` : of === 1 ? "1 step" : `${number(of)} steps`;
    const made = new Map();
    if (flame) {
      const [paths, totals, owns, calls] = flame;
      const others = new Set();
      paths.forEach((path, i) => {
        const above = data.paths[0][path];
        if (above === -2 || others.has(above)) others.add(path);
        if (others.has(path) !== otherThreads) return;
        const parent = made.get(above) || root;
        const [name, place, kind] = data.functions[data.paths[1][path]];
        const node = {
          id: String(path), above: parent, total: totals[i], own: owns[i], calls: calls[i], name, place, kind, below: [],
          depth: parent.depth + 1,
        };
        parent.below.push(node);
        made.set(path, node);
      });
    }
    const all = [root, ...made.values()];
    // Rounding must not make the parts larger than the whole.
    for (const node of [...all].reverse()) {
      const below = node.below.reduce((sum, each) => sum + each.total, 0);
      if (node.total < below) node.total = below;
      node.rest = node.total - below;
    }
    root.own = root.rest;
    return { all, of, leftOut: flame ? flame[4] : 0, flame };
  }

  // What of a name and a time fits into a box of so many characters; the end of a name tells most.
  function fitting(name, time, room) {
    if (name.length + time.length + 3 <= room) return `${name}  ${time}`;
    if (name.length + 1 <= room) return name;
    const end = name.split(".").pop();
    return end.length + 1 <= room ? end : room >= 6 ? "…" + end.slice(2 - Math.floor(room)) : "";
  }

  function callsChart() {
    const { all, of } = nodes();
    const top = all.find((node) => node.id === level) || all[0];
    const inside = new Set([top]);
    for (const node of all) if (inside.has(node.above)) inside.add(node);
    // What is too narrow to be seen is not drawn, and needs no height. It is in the table, and seen when zoomed in.
    const wide = all.filter((node) => (inside.has(node) ? node.total * 400 > top.total : node.below.some((each) => inside.has(each))));
    if (!wide.includes(top)) wide.push(top);
    const levels = Math.min(innerWidth < 640 ? 14 : 24, Math.max(...wide.map((node) => node.depth)) - top.depth + 1);
    const fill = [color("flame0"), color("flame1"), color("flame2")];
    const whole = all[0].total || 1;
    const per = of > 1 ? " per step" : "";
    const room = byId("calls").clientWidth / 6.4; // characters
    const trace = {
      type: "icicle", ids: wide.map((node) => node.id), labels: wide.map((node) => escaped(node.name)),
      parents: wide.map((node) => (node.above ? node.above.id : "")), values: wide.map((node) => node.total),
      text: wide.map((node) => escaped(fitting(node.name, duration(node.total / of), (node.total / (top.total || 1)) * room))),
      branchvalues: "total", sort: false, level: top.id, texttemplate: "%{text}", textposition: "middle left", hoverinfo: "text", maxdepth: levels,
      hovertext: wide.map((node) => `<b>${escaped(node.name)}</b><br>` + (node.place ? `${escaped(node.place)}<br>` : "") +
        `total ${duration(node.total / of)}${per}, ${percent(node.total / whole)}<br>self ${duration(node.own / of)}` +
        (node.calls ? `<br>${number(Number((node.calls / of).toFixed(2)))} ${node.calls === 1 ? "call" : "calls"}${per}` : "")),
      marker: {
        colors: wide.map((node) => (node.above ? fill[node.kind] : color("panel"))), line: { width: 0.6, color: color("back") },
      },
      insidetextfont: { color: color("text"), size: 11 }, tiling: { orientation: "v", pad: 0 },
      pathbar: { visible: top !== all[0], thickness: 22, textfont: { color: color("text"), size: 11 } },
      root: { color: "rgba(0,0,0,0)" }, leaf: { opacity: 1 },
    };
    return [[trace], {
      margin: { l: 2, r: 2, t: top === all[0] ? 2 : 26, b: 2 }, height: 30 + levels * 24,
      uniformtext: { minsize: 9, mode: "hide" },
    }];
  }

  function callsTable() {
    const { all, of, leftOut } = nodes();
    const order = [];
    const rest = [all[0]];
    while (rest.length) {
      const node = rest.pop();
      order.push(node);
      rest.push(...[...node.below].sort((a, b) => a.total - b.total));
    }
    const table = document.createElement("table");
    const row = (cells, tag) => {
      const made = document.createElement("tr");
      cells.forEach((cell, i) => {
        const at = document.createElement(tag);
        if (i >= 3) at.className = "text";
        at.textContent = cell;
        made.append(at);
      });
      table.append(made);
      return made;
    };
    row(["total", "self", "calls", "function", "place"], "th");
    for (const node of order.slice(0, 300)) {
      const made = row([duration(node.total / of), duration(node.own / of),
        node.calls ? number(Number((node.calls / of).toFixed(2))) : "", node.name, node.place || ""], "td");
      made.children[3].style.paddingLeft = `${node.depth}em`;
    }
    if (leftOut || order.length > 300) {
      row(["", "", "", `${number(leftOut + Math.max(0, order.length - 300))} smaller paths are not shown`, ""], "td");
    }
    byId("calls-table").replaceChildren(table);
  }

  function showLines() {
    for (const role of ["train", "eval"]) {
      const box = byId(`lines-${role}`);
      if (!box) continue;
      box.hidden = role !== chosen.role;
      const one = role === chosen.role && chosen.n !== null;
      const took = new Map();
      let whole = 0;
      if (one) {
        const steps = data.steps[role], i = steps.n.indexOf(chosen.n);
        steps.line[i].forEach((at, k) => {
          took.set(at, (took.get(at) || 0) + steps.lineTook[i][k]);
          whole += steps.lineTook[i][k];
        });
      }
      const rows = [...box.querySelectorAll("tr[data-at]")];
      if (!one) whole = rows.reduce((sum, each) => sum + Number(each.dataset.took), 0);
      for (const each of rows) {
        const time = one ? took.get(Number(each.dataset.at)) || 0 : Number(each.dataset.took);
        const share = whole ? time / whole : 0;
        each.querySelector(".took").textContent = time ? duration(time) : "";
        each.querySelector(".share").textContent = time ? percent(share) : "";
        each.style.setProperty("--share", `${share * 100}%`);
      }
      box.querySelector(".lines-of").textContent = one ? `Of step ${number(chosen.n)}, calls from a line included.`
        : `Per recorded step, calls from a line included; over ${number(Number(box.dataset.steps))} ${box.dataset.steps === "1" ? "step" : "steps"}.`;
    }
  }

  function choose(role, n, scroll, note) {
    if (!data.all[role] || (n !== null && !data.steps[role].n.includes(n))) return;
    if (role !== chosen.role) level = "";
    chosen.role = role;
    chosen.n = n;
    const { all, flame } = nodes();
    if (!all.some((node) => node.id === level)) level = "";
    fillSteps();
    const steps = data.steps[role], i = steps.n.indexOf(n);
    byId("chosen").textContent = (note || "") + (n === null
      ? (data.all[role].steps === 1 ? `The one recorded ${NAMES[role]} step`
        : `All ${number(data.all[role].steps)} recorded ${NAMES[role]} steps together`)
      : `${NAMES[role][0].toUpperCase()}${NAMES[role].slice(1)} step ${number(n)}: ${duration(steps.took[i])}, data wait ` +
        `${duration(steps.waited[i])}, stage ${data.texts[steps.stage[i]]}, recorded because of ${data.texts[steps.reason[i]]}`) +
      (flame && flame[0].length ? "" : "; no calls were recorded");
    byId("focus").textContent = "";
    const others = flame && flame[0].some((path) => data.paths[0][path] === -2);
    byId("threads").hidden = !others;
    if (!others && otherThreads) {
      otherThreads = false;
      byId("thread").value = "0";
    }
    for (const id of [`times-${role}`, `times-${role === "train" ? "eval" : "train"}`, "shares-train", "calls"]) {
      if (drawn.has(id)) drawn.get(id)();
    }
    callsTable();
    showLines();
    const hash = n === null ? "" : `#${role}-${n}`;
    if (location.hash !== hash && (hash || /^#(train|eval)-/.test(location.hash))) {
      try {
        history.replaceState(null, "", hash || location.pathname + location.search);
      } catch {
        // A page without an address of its own has no place for it.
      }
    }
    if (scroll) byId("recorded").scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
  }

  let listed = null;

  function fillSteps() {
    const role = chosen.role, select = byId("step"), steps = data.steps[role];
    if (listed !== role) {
      listed = role;
      const option = (value, text) => {
        const made = document.createElement("option");
        made.value = value;
        made.textContent = text;
        return made;
      };
      select.replaceChildren(option("", `all ${number(data.all[role].steps)}`),
        ...steps.n.map((n, i) => option(n, `${n}: ${duration(steps.took[i])}`)));
      byId("role").value = role;
    }
    select.value = chosen.n === null ? "" : chosen.n;
    const at = steps.n.indexOf(chosen.n);
    byId("earlier").disabled = at === 0;
    byId("later").disabled = at === steps.n.length - 1;
    byId("merged").disabled = chosen.n === null;
  }

  if (byId("choose") && roles.length) {
    for (const role of roles) {
      const option = document.createElement("option");
      option.value = role;
      option.textContent = NAMES[role];
      byId("role").append(option);
    }
    byId("role").parentElement.hidden = roles.length < 2;
    byId("role").addEventListener("change", (event) => choose(event.target.value, null));
    byId("step").addEventListener("change", (event) => choose(chosen.role, event.target.value ? Number(event.target.value) : null));
    byId("earlier").addEventListener("click", () => neighbour(-1));
    byId("later").addEventListener("click", () => neighbour(1));
    byId("merged").addEventListener("click", () => choose(chosen.role, null));
    byId("slowest").addEventListener("click", () => {
      const steps = data.steps[chosen.role];
      const own = steps.took.map((took, i) => took - steps.evaluated[i]);
      choose(chosen.role, steps.n[own.indexOf(own.reduce((a, b) => Math.max(a, b)))]);
    });
    byId("thread").addEventListener("change", (event) => {
      otherThreads = event.target.value === "1";
      level = "";
      drawn.get("calls")();
      callsTable();
    });
    byId("choose").addEventListener("submit", (event) => event.preventDefault());
    chart("calls", null, callsChart, (box) => {
      const tell = () => {
        const node = nodes().all.find((each) => each.id === level) || nodes().all[0];
        const { of } = nodes();
        byId("focus").textContent = `${node.name}${node.place ? ` (${node.place})` : ""}: total ${duration(node.total / of)}, ` +
          `self ${duration(node.own / of)}`;
      };
      const go = (node) => {
        if (!node) return;
        level = node.id;
        drawn.get("calls")();
        tell();
      };
      box.on("plotly_icicleclick", (event) => {
        go(nodes().all.find((each) => each.id === event.nextLevel) || nodes().all[0]);
        return false; // drawn anew instead of zoomed: what was too narrow is there then
      });
      box.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const { all } = nodes();
        const node = all.find((each) => each.id === level) || all[0];
        const beside = node.above ? node.above.below : [node];
        const moves = {
          ArrowDown: () => node.below.reduce((best, each) => (best && best.total >= each.total ? best : each), null),
          ArrowUp: () => node.above, Home: () => all[0], Escape: () => all[0],
          ArrowLeft: () => beside[beside.indexOf(node) - 1], ArrowRight: () => beside[beside.indexOf(node) + 1],
        };
        if (event.key === "[" || event.key === "]") neighbour(event.key === "[" ? -1 : 1);
        else if (moves[event.key]) {
          event.preventDefault();
          go(moves[event.key]());
        }
      });
    });
    const asked = () => {
      const match = /^#(train|eval)-(\d+)$/.exec(location.hash);
      if (!match || !data.all[match[1]]) return false;
      const n = nearest(match[1], Number(match[2]));
      const other = n !== Number(match[2]);
      choose(match[1], n, true, other ? `Step ${number(Number(match[2]))} is not among the recorded ones shown; the nearest is: ` : "");
      return true;
    };
    addEventListener("hashchange", asked);
    if (!asked()) choose(chosen.role, null);
  }

  // --- training ---

  // A figure over recorded steps: the mean, and the span where several steps share a point.
  function figure(course, name, tone, more) {
    const x = course.first.map((first, i) => (first + course.last[i]) / 2);
    const text = course.first.map((first, i) => `${escaped(name)}, ${span(first, course.last[i])}<br>${digits(course.mean[i])}` +
      (first === course.last[i] ? "" : `<br>${digits(course.low[i])} to ${digits(course.high[i])}, highest in step ${number(course.highest[i])}`));
    const line = {
      x, y: course.mean, name, mode: x.length > 100 ? "lines" : "lines+markers", line: { width: 1.3, color: tone },
      marker: { size: 4, color: tone }, text, hoverinfo: "text", ...more,
    };
    if (course.first.every((first, i) => first === course.last[i])) return [line];
    return [
      { x, y: course.low, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, ...more },
      { x, y: course.high, mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: color("band"), hoverinfo: "skip",
        showlegend: false, ...more },
      line,
    ];
  }

  const wide = (values) => {
    const positive = values.filter((each) => each > 0);
    return positive.length > 1 && positive.length === values.length && Math.max(...positive) > 30 * Math.min(...positive);
  };

  function spoilt(steps, name, y) {
    return steps.length ? [{
      x: steps, y: steps.map(() => y), mode: "markers", name, marker: { symbol: "x", size: 8, color: color("bad") },
      text: steps.map((n) => `step ${number(n)}: ${name}`), hoverinfo: "text",
    }] : [];
  }

  chart("loss", "train", () => {
    const traces = [];
    let values = [];
    for (const [role, course] of Object.entries(data.loss)) {
      traces.push(...figure(course, role === "eval" ? "evaluation" : "loss", color(role === "eval" ? "c2" : "c0")));
      values = values.concat(course.low);
      traces.push(...spoilt(course.nonfinite, "NaN or infinite", course.mean.length ? Math.min(...course.low) : 1));
    }
    return [traces, { xaxis: { text: "step" }, yaxis: { type: wide(values) ? "log" : "linear" } }];
  }, tools);

  if (data.norms && byId("parameter")) {
    const norms = data.norms, select = byId("parameter");
    norms.names.forEach((name, i) => {
      const option = document.createElement("option");
      option.value = i;
      option.textContent = name;
      select.append(option);
    });
    const all = document.createElement("option");
    all.value = "";
    all.textContent = "all parameters together";
    select.prepend(all);
    select.value = "";
    const one = () => (select.value === "" ? null : Number(select.value));
    const single = (grid, name, tone, more) => {
      const { first, last } = grid, row = one();
      const x = first.map((each, i) => (each + last[i]) / 2);
      return [{
        x, y: grid.mean[row], name, mode: "lines+markers", connectgaps: false, line: { width: 1.3, color: tone },
        marker: { size: 4, color: tone }, hoverinfo: "text", ...more,
        text: first.map((each, i) => `${name}, ${span(each, last[i])}<br>${digits(grid.mean[row][i] || 0)}` +
          (each === last[i] ? "" : `, greatest ${digits(grid.most[row][i] || 0)}`)),
      }];
    };
    chart("norms", "train", () => {
      const two = { yaxis: "y2" };
      const traces = one() === null
        ? [...figure(norms.grad, "gradients", color("c1")), ...figure(norms.norm, "parameters", color("c0"), two),
          ...spoilt(norms.spoilt.map((each) => each[0]), "NaN or infinite elements", norms.grad.low.length ? Math.min(...norms.grad.low) : 1)]
        : [...single(norms.grids.grad, "gradient", color("c1")), ...single(norms.grids.norm, "parameter", color("c0"), two)];
      const gradient = one() === null ? norms.grad.mean : norms.grids.grad.mean[one()].filter((each) => each !== null);
      return [traces, {
        xaxis: { text: "step" }, margin: { l: 50, r: 50, t: 8, b: 36 },
        yaxis: { text: "gradients", type: wide(gradient) ? "log" : "linear" },
        yaxis2: { text: "parameters", overlaying: "y", side: "right", showgrid: false, tickmode: "auto" },
      }];
    }, tools);
    chart("updates", "train", () => {
      const traces = one() === null
        ? [...figure(norms.update, "middle parameter", color("c0")), ...figure(norms.updateMost, "largest", color("c1"))]
        : single(norms.grids.update, "update", color("c0"));
      return [traces, { xaxis: { text: "step" }, yaxis: { type: "log", exponentformat: "power" } }];
    });
    chart("grid", "train", () => {
      const which = byId("figure").value, grid = norms.grids[which];
      const logs = grid.mean.map((row) => row.map((each) => (each > 0 ? Math.log10(each) : null)));
      const known = logs.flat().filter((each) => each !== null).sort((a, b) => a - b);
      const low = known[Math.floor(known.length * 0.02)] || 0, high = known[known.length - 1] || 1;
      const ticks = [];
      for (let at = Math.ceil(low); at <= high; at += Math.max(1, Math.ceil((high - low) / 6))) ticks.push(at);
      const names = norms.names.map((name) => escaped(name.length > 28 ? "…" + name.slice(-27) : name));
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      return [[{
        type: "heatmap", z: logs, x: grid.first.map((each, i) => (each + grid.last[i]) / 2), zmin: low, zmax: high,
        y: names.map((_, i) => i), colorscale: "Viridis", reversescale: !dark, xgap: 0, ygap: names.length < 60 ? 1 : 0,
        colorbar: { thickness: 10, outlinewidth: 0, tickvals: ticks, ticktext: ticks.map((at) => `10<sup>${at}</sup>`), tickfont: { color: color("faint") } },
        text: grid.mean.map((row, i) => row.map((each, k) => `${escaped(norms.names[i])}, ${span(grid.first[k], grid.last[k])}<br>` +
          (each === null ? "none" : digits(each)))),
        hoverinfo: "text",
      }], {
        xaxis: { text: "step" }, height: Math.max(160, Math.min(900, 70 + names.length * 18)),
        yaxis: { autorange: "reversed", tickvals: names.map((_, i) => i), ticktext: names, tickmode: names.length > 60 ? "auto" : "array", ticks: "", showgrid: false },
      }];
    }, (box) => {
      box.on("plotly_click", (event) => {
        select.value = event.points[0].pointNumber[0];
        select.dispatchEvent(new Event("change"));
      });
    });
    byId("figure").addEventListener("change", () => drawn.get("grid")());
    select.addEventListener("change", () => {
      drawn.get("norms")();
      drawn.get("updates")();
    });
  }

  // --- ranks ---

  chart("phases", null, () => {
    const phases = (data.ranks || { phases: [] }).phases;
    const [unit, size] = unitOf(Math.max(1, ...phases.flatMap((each) => each.took)));
    const traces = phases.map((phase, i) => ({
      type: "bar", orientation: "h", y: phase.rank, x: phase.took.map((each) => each / size), name: phase.name,
      marker: { color: color(phase.name === "other" ? "c7" : COLORS[i % COLORS.length]) }, hoverinfo: "text", textposition: "none",
      text: phase.rank.map((rank, k) => `${rank}, ${phase.name}: ${duration(phase.took[k])}`),
    }));
    const rows = phases.length ? phases[0].rank.length : 0;
    return [traces, {
      barmode: "stack", xaxis: { text: unit }, yaxis: { autorange: "reversed", type: "category" }, height: 110 + Math.min(40, rows) * 26,
    }];
  });
  chart("rank-times", "train", () => {
    const courses = (data.ranks || { courses: [] }).courses;
    const [unit, size] = unitOf(middle(courses.flatMap((each) => each.mean)));
    return [courses.map((each, i) => ({
      x: each.n, y: each.mean.map((took) => took / size), name: each.label, mode: "lines",
      line: { width: 1.2, color: color(COLORS[i % COLORS.length]) },
      text: each.n.map((n, k) => `${each.label}, step ${number(n)}: ${duration(each.mean[k])}`), hoverinfo: "text",
    })), { xaxis: { text: "step" }, yaxis: { text: unit } }];
  });

  // Colours are read anew when the system goes dark or light.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((draw) => draw()));
  document.body.dataset.ready = "yes";
})();
