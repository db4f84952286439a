// The page of `patevolve explain`. It looks numbers up in tables that the library computed; the arithmetic here is
// q·row + offset, the least over the orders, and a search for the largest q. No theorem is implemented here.
"use strict";
(() => {
  const T = JSON.parse(document.getElementById("tables").textContent);
  const $ = (id) => document.getElementById(id);
  const LETTERS = "ABCDE";
  const BUDGETS = [0.25, 0.5, 1, 2, 4, 8, 16];
  const S = { mech: "gnmax", noise: 4, teachers: 3, classes: 1, queries: 4, delta: 2, budget: 5, sample: 9, draw: 0,
    teacher: 0, leaver: 1, sites: 2, dropouts: 0, colluders: 0, trust: "secure-sum" };

  // ---- figures -------------------------------------------------------------------------------------------------
  const spent = (cost, offset, delta) => (-Math.expm1(-cost) <= delta * delta ? 0 : Math.max(0, cost + offset));

  function rdp(row, q, d) {
    let best = Infinity, order = NaN;
    for (let i = 0; i < row.length; i++) {
      const e = spent(q * row[i], T.offsets[d][i], T.deltas[d]);
      if (e < best) { best = e; order = T.orders[i]; }
    }
    return { epsilon: best, order };
  }

  function sparse(row, q, d) {
    let best = Infinity;
    for (let i = 0; i < row.length; i += 2) {
      best = Math.min(best, spent(q * row[i + 1], T.offsets[d][row[i]], T.deltas[d]));
    }
    return best;
  }

  // A confident plan is charged for pairs: two queries tested, one of them answered.
  const unit = () => (S.mech === "confident" ? 1 / T.answers : 1);
  const row = () => T.rows[S.mech][S.noise];

  function mostQueries(budget) {
    const fits = (n) => rdp(row(), n * unit(), S.delta).epsilon <= budget;
    let low = 0, high = 1;
    while (fits(high) && high < 1e12) { low = high; high *= 2; }
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (fits(middle)) low = middle; else high = middle;
    }
    return low * unit();
  }

  function votes() {
    const line = T.worlds[S.classes].votes[S.teachers][S.sample];
    const counts = new Array(T.classes[S.classes]).fill(0);
    for (const c of line) counts[+c]++;
    return counts;
  }

  function figures() {
    const q = T.queries[S.queries], d = S.delta, budget = BUDGETS[S.budget];
    const counts = votes(), sorted = [...counts].sort((a, b) => b - a), margin = sorted[0] - sorted[1];
    const all = rdp(row(), q, d), single = rdp(row(), unit(), d).epsilon;
    const flips = T.flips[S.mech === "lnmax" ? "lnmax" : "gnmax"][S.noise];
    const most = mostQueries(budget);
    const student = T.students[S.mech][S.noise][S.classes][S.teachers][Math.min(S.queries, T.studentQueries.length - 1)];
    return {
      q, counts, margin, single, student, epsilon: all.epsilon, order: all.order, naive: (q / unit()) * single,
      flip: flips[margin], most, mostNaive: Math.floor(budget / single) * unit(), left: most - q, budget,
      dependent: sparse(T.sparse[T.dependent[S.mech][S.noise][S.classes][S.teachers][S.sample]], q, d),
      answered: T.answered[S.noise][S.classes][S.teachers][S.sample],
      baseline: T.students.baseline[S.classes],
    };
  }

  // ---- text ----------------------------------------------------------------------------------------------------
  function number(x) {
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e7 || size < 1e-4) {
      const [m, e] = x.toExponential(1).split("e");
      return `${m}·10${[...String(+e)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[+c])).join("")}`;
    }
    if (size >= 1000) return Math.round(x).toLocaleString("en").replace(/,/g, "\u202f");
    return String(+x.toPrecision(3));
  }
  const percent = (p) => (p >= 0.9995 && p < 1 ? "> 99.9 %" : p > 0 && p < 0.001 ? `${number(100 * p)} %` : `${+(100 * p).toPrecision(3)} %`);
  function put(id, text, value) {
    const element = $(id);
    element.textContent = text;
    if (value !== undefined) element.dataset.value = String(value);
  }
  const noiseName = () => (S.mech === "lnmax" ? "γ" : "σ");
  const noiseStop = () => (S.mech === "lnmax" ? T.gammas : T.sigmas)[S.noise];

  const HINTS = {
    gnmax: "Gaussian noise of σ votes on every count. A larger σ is more private.",
    lnmax: "Laplace noise of scale 2/γ. A larger γ is less noise: less private.",
    confident: "First a noisy test whether the votes agree; most of the cost falls only on questions that pass.",
  };

  function controls() {
    const ranges = { noise: T.sigmas.length, teachers: T.teachers.length, classes: T.classes.length, queries: T.queries.length,
      delta: T.deltas.length, budget: BUDGETS.length, sites: T.sites.length, sample: T.worlds[0].votes[0].length };
    for (const [id, size] of Object.entries(ranges)) { $(id).max = size - 1; $(id).value = S[id]; }
    const names = [...Object.keys(ranges), "dropouts", "colluders", "teacher"];
    for (const id of names) $(id).addEventListener("input", () => { S[id] = +$(id).value; draw(); });
    for (const name of ["mech", "trust"]) {
      for (const input of document.querySelectorAll(`input[name=${name}]`)) {
        input.addEventListener("change", () => { S[name] = input.value; draw(); });
      }
    }
    T.leavers.forEach((at, i) => {
      const label = document.createElement("label"), input = document.createElement("input"), text = document.createElement("span");
      Object.assign(input, { type: "radio", name: "leaver", value: i, checked: i === S.leaver });
      input.addEventListener("change", () => { S.leaver = i; draw(); });
      text.textContent = `row ${at + 1}`;
      label.append(input, text);
      $("leavers").append(label);
    });
    $("again").addEventListener("click", () => { S.draw = (S.draw + 1) % T.draws.test[0].length; draw(); });
    $("panel").addEventListener("submit", (event) => event.preventDefault());
  }

  function readings(f) {
    const K = T.teachers[S.teachers];
    S.teacher = Math.min(S.teacher, K - 1);
    $("teacher").max = K - 1;
    $("teacher").value = S.teacher;
    $("noise-label").textContent = S.mech === "lnmax" ? "Noise γ" : "Noise σ (votes)";
    $("queries-label").textContent = S.mech === "confident" ? "Questions tested q" : "Answers q";
    $("mech-hint").textContent = HINTS[S.mech];
    const said = {
      noise: S.mech === "lnmax" ? `${noiseStop()} (scale ${+(2 / noiseStop()).toPrecision(3)})` : `${noiseStop()}`,
      teachers: `${K}`, classes: `${T.classes[S.classes]}`, queries: number(f.q), delta: `10${["⁻³", "⁻⁴", "⁻⁵", "⁻⁶"][S.delta]}`,
      budget: `${f.budget}`, sites: `${T.sites[S.sites]}`, dropouts: `${S.dropouts}`, colluders: `${S.colluders}`,
      teacher: `${S.teacher + 1} of ${K}`, sample: `${S.sample + 1} of ${T.worlds[0].votes[0].length}`,
    };
    for (const [id, text] of Object.entries(said)) {
      $(`${id}-out`).textContent = text;
      $(id).setAttribute("aria-valuetext", text);
    }
  }

  function costs(f) {
    const confident = S.mech === "confident";
    put("margin", String(f.margin), f.margin);
    put("flip", percent(f.flip), f.flip);
    $("answered-box").hidden = !confident;
    put("answered", percent(f.answered), f.answered);
    $("answered-sub").textContent = `probability that the largest count plus noise of σ₁ = ${T.testNoise}σ reaches ${T.thresholds[S.teachers]} votes`;
    $("cost-intro").textContent = confident
      ? `The plan tests ${number(f.q)} questions and answers at most half of them. Tests cost less than answers.`
      : `The plan buys ${number(f.q)} answers. How they add up is a matter of counting, and bad counting throws the budget away.`;
    $("single-name").textContent = confident ? "Two tests and one answer" : "One answer alone";
    put("single", number(f.single), f.single);
    put("naive", number(f.naive), f.naive);
    put("rdp", number(f.epsilon), f.epsilon);
    put("order", number(f.order), f.order);
    put("dependent", number(f.dependent), f.dependent);
    $("dependent-note").textContent = f.dependent < f.epsilon * (1 - 1e-9)
      ? "if all questions were voted on like this one; it depends on the votes, so it stays at the site"
      : "these votes are not clear enough for this noise: no saving";
    $("article-row").hidden = S.mech !== "lnmax";
    const gamma = T.gammas[S.noise], article = (2 / gamma) * Math.exp(-f.margin / gamma);
    put("article", number(article), article);
    put("article-gamma", String(gamma));
    put("qmax", number(f.most), f.most);
    put("qnaive", number(f.mostNaive), f.mostNaive);
    put("left", f.left < 0 ? "none" : number(f.left), f.left);
    $("left-sub").textContent = f.left < 0 ? `q is ${number(-f.left)} too many for ε = ${f.budget}` : `of ε = ${f.budget} at this noise`;
    put("dock-eps", number(f.epsilon));
    put("dock-flip", percent(f.flip));
    put("dock-left", f.left < 0 ? "none" : number(f.left));
    put("dock-student", percent(f.student[0]));
  }

  // ---- drawings ------------------------------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  function add(parent, tag, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }
  const colour = (c) => `var(--c${c})`;

  function world() {
    const W = T.worlds[S.classes], svg = $("world"), shards = T.shards[S.teachers];
    svg.replaceChildren();
    const faint = LETTERS.split("").map(() => ""), strong = LETTERS.split("").map(() => "");
    let own = 0;
    for (let i = 0; i < shards.length; i++) {
      const mine = shards[i] === S.teacher, dot = `M${W.x[2 * i]} ${-W.x[2 * i + 1]}h0`;
      if (mine) { strong[+W.y[i]] += dot; own++; } else faint[+W.y[i]] += dot;
    }
    const paint = (paths, width, opacity) => paths.forEach((d, c) => d && add(svg, "path",
      { d, stroke: colour(c), "stroke-width": width, "stroke-linecap": "round", opacity, fill: "none" }));
    paint(faint, 3.2, 0.16);
    paint(strong, 8.5, 0.9);
    const [x, y] = [W.samples[2 * S.sample], -W.samples[2 * S.sample + 1]];
    add(svg, "circle", { cx: x, cy: y, r: 12, fill: "var(--surface)", stroke: "var(--ink)", "stroke-width": 2.5 });
    add(svg, "text", { x, y: y + 5.5, "text-anchor": "middle", "font-weight": 700 }, "?");
    const text = `Teacher ${S.teacher + 1} of ${T.teachers[S.teachers]} learns from ${own} of ${shards.length} records: the strong dots. “?” is the public question.`;
    $("world-caption").textContent = text;
    svg.setAttribute("aria-label", text);
  }

  function discs(svg, size, height, paint, chosen) {
    const K = T.teachers[S.teachers], width = 470;
    const columns = Math.ceil(Math.sqrt((K * width) / height)), step = Math.min(width / columns, height / Math.ceil(K / columns));
    svg.replaceChildren();
    for (let k = 0; k < K; k++) {
      const cx = step * ((k % columns) + 0.5), cy = step * (Math.floor(k / columns) + 0.5), r = step * size;
      const look = paint(k);
      const disc = add(svg, "circle", { cx, cy, r, fill: look.fill, stroke: look.stroke || "none", "stroke-width": look.stroke ? 1.5 : 0, class: "disc" });
      disc.dataset.teacher = k;
      add(disc, "title", {}, look.title);
      if (look.letter && step > 26) {
        add(svg, "text", { x: cx, y: cy + step * 0.13, "text-anchor": "middle", style: `fill: var(--surface); font-size: ${step * 0.36}px; font-weight: 650; pointer-events: none` }, look.letter);
      }
      if (k === chosen) add(svg, "circle", { cx, cy, r: r + 2.5, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 });
    }
  }

  function grid() {
    const line = T.worlds[S.classes].votes[S.teachers][S.sample];
    discs($("grid"), 0.4, 470, (k) => ({ fill: colour(line[k]), letter: LETTERS[line[k]], title: `teacher ${k + 1} votes ${LETTERS[line[k]]}` }), S.teacher);
    $("grid").setAttribute("aria-label", `The teachers' votes: ${votes().map((n, c) => `${n} for ${LETTERS[c]}`).join(", ")}.`);
  }
  $("grid").addEventListener("click", (event) => {
    const disc = event.target.closest(".disc");
    if (disc) { S.teacher = +disc.dataset.teacher; draw(); }
  });

  function bars(f) {
    const svg = $("bars"), C = f.counts.length, stride = T.draws.stride, height = 34 + 50 * C;
    const kind = S.mech === "lnmax" ? "lnmax" : "gnmax";
    const noise = f.counts.map((_, c) => T.draws[kind][S.noise][S.draw * stride + c]);
    const noisy = f.counts.map((n, c) => n + noise[c]);
    const top = Math.max(...noisy), winner = noisy.indexOf(top), tied = noisy.filter((v) => v === top).length > 1;
    const bottom = Math.min(0, ...noisy), ceiling = Math.max(T.teachers[S.teachers] * 0.6, ...noisy, ...f.counts);
    const test = Math.max(...f.counts) + T.draws.test[S.noise][S.draw], confident = S.mech === "confident";
    const passed = !confident || test >= T.thresholds[S.teachers];
    const narrow = innerWidth < 640, span = narrow ? 180 : 660;
    const x = (v) => 46 + (span * (v - bottom)) / (ceiling - bottom);
    svg.setAttribute("viewBox", `0 0 ${narrow ? 420 : 960} ${height}`);
    svg.replaceChildren();
    add(svg, "line", { x1: x(0), x2: x(0), y1: 6, y2: height - 26, stroke: "var(--muted)", "stroke-width": 1 });
    add(svg, "text", { x: x(0), y: height - 6, "text-anchor": "middle", class: "quiet" }, "0 votes");
    f.counts.forEach((n, c) => {
      const y = 10 + 50 * c, mid = y + 17;
      add(svg, "text", { x: 14, y: mid + 6, style: "font-weight: 650; font-size: 18px" }, LETTERS[c]);
      add(svg, "rect", { x: x(0), y, width: Math.max(1, x(n) - x(0)), height: 34, rx: 3, fill: colour(c), opacity: 0.85 });
      add(svg, "line", { x1: x(n), x2: x(noisy[c]), y1: mid, y2: mid, stroke: "var(--ink)", "stroke-width": 2, "stroke-dasharray": "3 4" });
      add(svg, "path", { d: `M${x(noisy[c])} ${mid - 15}v30`, stroke: "var(--ink)", "stroke-width": 5, class: "mark" });
      const say = `${n} ${noise[c] < 0 ? "−" : "+"} ${Math.abs(noise[c])} = ${noisy[c]}`.replace("= -", "= −");
      add(svg, "text", { x: span + 66, y: mid + 6, style: c === winner && passed ? "font-weight: 700" : "" }, c === winner && passed ? `${say}  ✓ wins` : say);
    });
    const right = f.counts.indexOf(Math.max(...f.counts)), what = [];
    if (confident) {
      what.push(`Test: the largest count plus noise is ${test}, ${passed ? "at least" : "below"} ${T.thresholds[S.teachers]}. ${passed ? "The question is answered." : "The question stays unanswered."}`);
    }
    if (passed) {
      what.push(`Only this leaves the site: “${LETTERS[winner]}”${tied ? " (a tie, broken by a coin)" : ""}. ${winner === right ? "The plurality won." : `Noise turned the vote over: the plurality was ${LETTERS[right]}.`}`);
    }
    $("verdict").textContent = what.join(" ");
    $("verdict").className = passed && winner === right ? "verdict" : "verdict warn";
    svg.setAttribute("aria-label", f.counts.map((n, c) => `${LETTERS[c]}: ${n} votes, ${noisy[c]} with noise`).join("; "));
    $("draw-out").textContent = `draw ${S.draw + 1} of ${T.draws.test[0].length}`;
  }

  function leaving() {
    const found = T.leaving[S.teachers][S.leaver], K = T.teachers[S.teachers];
    for (const [id, changed] of [["keyed", found.keyed], ["sliced", found.contiguous]]) {
      const set = new Set(changed);
      discs($(id), 0.38, 250, (k) => ({ fill: set.has(k) ? "var(--bad)" : "var(--rule)", letter: set.has(k) ? "✗" : "", title: `teacher ${k + 1}: ${set.has(k) ? "changed" : "as before"}` }), -1);
      const text = `${changed.length} of ${K} teachers ${changed.length === 1 ? "changes" : "change"}`;
      $(id).setAttribute("aria-label", text);
      put(`${id}-out`, `${text}.`, changed.length);
    }
  }

  function sites() {
    const n = T.sites[S.sites], key = `${n}/${S.dropouts}/${S.colluders}`, K = T.teachers[S.teachers];
    const possible = key in T.pooled.std;
    const show = (id, k) => {
      const known = k in T.pooled.std;
      const wins = known ? T.pooled.wins[k][S.noise][S.teachers][S.classes] : NaN;
      put(`share-${id}`, known ? number(T.pooled.share[k][S.noise]) : "–", known ? T.pooled.share[k][S.noise] : "");
      put(`std-${id}`, known ? number(T.pooled.std[k][S.noise]) : "–", known ? T.pooled.std[k][S.noise] : "");
      put(`lead-${id}`, known ? number(0.2 * n * K) : "–");
      put(`wins-${id}`, known ? percent(wins) : "–", known ? wins : "");
      for (const what of ["share", "std", "lead", "wins"]) $(`${what}-${id}`).classList.toggle("chosen", (S.trust === "secure-sum") === (id === "pooled"));
    };
    show("pooled", key);
    show("each", String(n));
    const text = S.trust === "each-site"
      ? `Each of ${n} site${n > 1 ? "s" : ""} adds the full noise σ = ${T.sigmas[S.noise]}. Nobody else need be trusted; drop-outs and colluders change nothing.`
      : possible
        ? `${n} site${n > 1 ? "s" : ""}, ${S.dropouts} may drop out, ${S.colluders} may collude: ${n - S.dropouts - S.colluders} honest share${n - S.dropouts - S.colluders > 1 ? "s" : ""} must carry σ = ${T.sigmas[S.noise]}.`
        : "No honest site would be left: such a plan is refused.";
    $("sites-verdict").textContent = text + (S.mech === "lnmax" ? " (Sites share Gaussian noise; LNMax is for one site.)" : "");
    $("sites-verdict").className = possible || S.trust === "each-site" ? "verdict" : "verdict warn";
  }

  function student(f) {
    const [accuracy, right, given, ...flat] = f.student, C = T.classes[S.classes];
    const asked = Math.min(f.q, T.studentQueries[T.studentQueries.length - 1]);
    const canvas = $("map"), pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), cell = 8;
    const ink = [...LETTERS].map((_, c) => style.getPropertyValue(`--c${c}`).trim());
    for (let px = 0; px < canvas.width; px += cell) {
      for (let py = 0; py < canvas.height; py += cell) {
        let best = 0, least = Infinity;
        for (let c = 0; c < C; c++) {
          if (flat[2 * c] === 999) continue;
          const away = (px + cell / 2 - 220 - flat[2 * c]) ** 2 + (220 - py - cell / 2 - flat[2 * c + 1]) ** 2;
          if (away < least) { least = away; best = c; }
        }
        pen.globalAlpha = least === Infinity ? 0 : 0.28;
        pen.clearRect(px, py, cell, cell);
        pen.fillStyle = ink[best];
        pen.fillRect(px, py, cell, cell);
      }
    }
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let c = 0; c < C; c++) {
      if (flat[2 * c] === 999) continue;
      const [x, y] = [220 + flat[2 * c], 220 - flat[2 * c + 1]];
      pen.fillStyle = ink[c];
      pen.beginPath();
      pen.arc(x, y, 15, 0, 7);
      pen.fill();
      pen.fillStyle = style.getPropertyValue("--surface");
      pen.font = "650 17px system-ui, sans-serif";
      pen.fillText(LETTERS[c], x, y + 1);
    }
    const missing = [...Array(C).keys()].filter((c) => flat[2 * c] === 999).map((c) => LETTERS[c]);
    canvas.setAttribute("aria-label", `Map of the student's answers. ${missing.length ? `It has no label of class ${missing.join(", ")}.` : "All classes occur."}`);
    put("map-out", number(asked), asked);
    put("student", percent(accuracy), accuracy);
    put("right", percent(right), right);
    $("given").textContent = `of ${number(given)} given, ${number(asked)} asked${f.q > asked ? "; there are no more public points" : ""}`;
    put("one-teacher", percent(f.baseline.single[S.teachers]), f.baseline.single[S.teachers]);
    put("chance", percent(f.baseline.chance), f.baseline.chance);
  }

  // ---- charts (uPlot) ------------------------------------------------------------------------------------------
  const charts = {};
  const tens = (log) => (_, splits) => splits.map((v) => (log && Math.abs(Math.log10(v) - Math.round(Math.log10(v))) > 1e-9 ? null : v));
  function chart(id, spec, data, label) {
    const style = getComputedStyle(document.documentElement), css = (name) => style.getPropertyValue(name).trim();
    const box = $(id), width = box.clientWidth || 420;
    if (charts[id]) charts[id].destroy();
    const axis = (options) => ({ stroke: css("--muted"), font: "13px system-ui, sans-serif", labelFont: "13px system-ui, sans-serif", labelSize: 18, labelGap: 0, gap: 4,
      grid: { stroke: css("--rule"), width: 1, filter: tens(options.log) }, ticks: { stroke: css("--rule"), width: 1, filter: tens(options.log) }, ...options });
    const kinds = { k1: { stroke: css("--accent"), width: 2.5 }, k2: { stroke: css("--c1"), width: 2.5, dash: [8, 5] },
      k3: { stroke: css("--muted"), width: 2, dash: [2, 4] }, k4: { stroke: css("--c4"), width: 2.5 } };
    charts[id] = new uPlot({
      width, height: 240, legend: { show: false }, cursor: { show: false }, select: { show: false }, padding: [10, 22, 0, 0],
      scales: { x: { time: false, distr: spec.logX ? 3 : 1, range: spec.rangeX }, y: { distr: spec.logY ? 3 : 1, range: spec.rangeY } },
      axes: [axis({ label: spec.x, log: spec.logX && !spec.ticksX, values: (_, v) => v.map((n) => (n === null ? "" : number(n))), ...(spec.ticksX ? { splits: () => spec.ticksX } : {}) }),
        axis({ label: spec.y, size: 56, log: spec.logY, values: (_, v) => v.map((n) => (n === null ? "" : spec.percent ? `${Math.round(100 * n)} %` : number(n))) })],
      series: [{}, ...spec.lines.map((k) => ({ ...kinds[k], points: { show: spec.points && k === "k1", size: 7, fill: css("--accent") } }))],
    }, data, box);
    box.setAttribute("aria-label", label);
  }

  function allCharts(f) {
    const d = S.delta, place = T.dependent[S.mech][S.noise][S.classes][S.teachers][S.sample];
    const sums = T.queries.map((q) => rdp(row(), q, d).epsilon), naive = T.queries.map((q) => (q / unit()) * f.single);
    const own = T.queries.map((q) => Math.max(1e-6, sparse(T.sparse[place], q, d)));
    const logRange = (_, low, high) => [10 ** Math.floor(Math.log10(Math.max(low, 1e-3))), 10 ** Math.ceil(Math.log10(high))];
    chart("chart-queries", { x: "answers q", y: "ε", logX: true, logY: true, lines: ["k1", "k2", "k4", "k3"], rangeX: [10, 4000], rangeY: logRange, points: true, ticksX: [10, 100, 1000, 4000] },
      [T.queries, sums, naive, own.map((v) => (v < 1e-3 ? null : v)), T.queries.map(() => f.budget)],
      `ε against the number of answers: Rényi ${number(f.epsilon)} against the naive sum ${number(f.naive)} at q = ${f.q}.`);
    const valid = T.orders.map((a, i) => [a, spent(f.q * row()[i], T.offsets[d][i], T.deltas[d])]).filter((p) => p[1] > 0);
    const least = Math.min(...valid.map((p) => p[1])), near = valid.filter((p) => p[1] <= 20 * least && p[0] <= 50 * f.order);
    chart("chart-orders", { x: "Rényi order α", y: "ε at this order", logX: true, logY: true, lines: ["k1"], rangeY: logRange },
      [near.map((p) => p[0]), near.map((p) => p[1])], `ε by Rényi order; the lowest point is ${number(f.epsilon)} at order ${number(f.order)}.`);
    const wins = (k) => (k in T.pooled.wins ? T.pooled.wins[k][S.noise][S.teachers][S.classes] : null);
    chart("chart-sites", { x: "sites", y: "right class wins", logX: true, percent: true, lines: ["k1", "k2"], points: true, rangeY: [0, 1], rangeX: [1, 16], ticksX: T.sites },
      [T.sites, T.sites.map((n) => wins(`${n}/${S.dropouts}/${S.colluders}`)), T.sites.map((n) => wins(String(n)))],
      "Probability that a 60 to 40 vote survives the noise, by number of sites.");
    const line = T.students[S.mech][S.noise][S.classes][S.teachers];
    chart("chart-student", { x: "public questions asked", y: "accuracy", logX: true, percent: true, lines: ["k1", "k3", "k2"], points: true, rangeY: [0, 1], rangeX: [10, 400], ticksX: T.studentQueries },
      [T.studentQueries, line.map((p) => p[0]), line.map(() => f.baseline.private), line.map(() => f.baseline.chance)],
      `The student's accuracy by number of questions; ${percent(f.student[0])} now.`);
  }

  function draw() {
    const f = figures();
    readings(f);
    costs(f);
    world();
    grid();
    bars(f);
    leaving();
    sites();
    student(f);
    allCharts(f);
    document.documentElement.dataset.state = JSON.stringify(S);
  }

  controls();
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
})();
