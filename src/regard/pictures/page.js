"use strict";
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const range = (n) => [...Array(n).keys()];
const LABEL = 12, KEEP = 12; // pixels of a label; layers kept decoded

// What others wrote only ever becomes text: an element, its own properties, its texts.
function make(tag, properties, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
}
const quoted = (token) => `“\u2068${token}\u2069”`; // a word from right to left turns no sentence round
const percent = (p) => `${(100 * p).toFixed(p > 0 && p < 0.001 ? 2 : 1)} %`;
const signed = (v, plus = "+") => `${v < 0 ? "−" : plus}${Math.abs(v).toFixed(3)}`;

// --- weights: bytes n·√w, packed layer by layer ---
const weightOf = Float32Array.from(range(256), (code) => Math.min(1, (code / data.levels) ** 2));
const kept = new Map(), loaded = new Promise((done) => addEventListener("DOMContentLoaded", done));

function unpacked(id) {
  const buffer = kept.get(id) ?? inflate(id);
  kept.delete(id);
  kept.set(id, buffer);
  if (kept.size > KEEP) kept.delete(kept.keys().next().value);
  return buffer;
}

async function inflate(id) {
  if (!$(id)) await loaded; // most layers stand behind this program
  const text = $(id).textContent;
  const packed = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

// One head's matrix, row after row.
function matrix(block, buffer, head) {
  const [, heads, rows, columns] = block.shape, size = rows * columns, at = new Float32Array(size);
  const codes = block.scale ? new Int16Array(buffer) : new Uint8Array(buffer, head * size, size);
  if (block.scale) for (let i = 0; i < size; i++) at[i] = codes[i] * block.scale;
  else for (let i = 0; i < size; i++) at[i] = weightOf[codes[i]];
  if ($("norm").checked && block.norms && buffer.byteLength > heads * size) {
    const start = heads * size + 4 * head * columns, norms = new Float32Array(buffer.slice(start, start + 4 * columns));
    for (let r = 0; r < size; r += columns) {
      let sum = 0;
      for (let c = 0; c < columns; c++) sum += at[r + c] *= norms[c];
      for (let c = 0; c < columns; c++) at[r + c] /= sum || 1;
    }
  }
  return wordly() ? grouped(at, block) : at;
}

// Where a word looks is the mean over its tokens, looks at it are the sum of those at its tokens; evidence adds up on both sides.
function grouped(at, { scale, words: { row, column, rows, columns } }) {
  const sums = new Float32Array(rows.length * columns.length), sizes = new Float32Array(rows.length);
  for (const word of row) sizes[word] = scale ? 1 : sizes[word] + 1;
  row.forEach((word, r) => {
    for (let c = 0; c < column.length; c++) sums[word * columns.length + column[c]] += at[r * column.length + c] / sizes[word];
  });
  return sums;
}

// --- what is chosen ---
for (const b of data.blocks) b.words = wordsOf(b);

// The words of a block's rows and columns, and of each token the number of its word; null where tokens are words.
function wordsOf({ name, rows, columns }) {
  const [source, target] = data.words;
  if (!source || !target) return null;
  const [row, looked] = name === "encoder" ? [source, source] : [target, source];
  const read = [0, ...target[1].slice(0, -1).map((word) => word + 1)];
  const column = name === "decoder" ? [["<bos>", ...target[0]].slice(0, read.at(-1) + 1), read] : looked;
  const fewer = row[0].length < rows.length || column[0].length < columns.length;
  const whole = row[1].length === rows.length && column[1].length === columns.length;
  return fewer && whole ? { rows: row[0], row: row[1], columns: column[0], column: column[1] } : null;
}

let block, names, shown, turn = 0; // names: of the rows and columns; shown: { at, rows, columns, top }
let show = () => {}; // draws once more what is chosen
const FIRST = { r: 0, c: -1 }; // what is picked when a page opens
let picked = FIRST, chosen = {}; // chosen: layer and head where attention was last shown; each block keeps its own
const wordly = () => $("words").checked && Boolean(block.words);

function options(select, pairs, first, before) {
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
  select.value = pairs.some(([value]) => String(value) === before) ? before : String(first);
  select.parentElement.hidden = pairs.length < 2;
}

function choose() {
  block = data.blocks[Number($("block").value)];
  const [layers, heads] = block.shape, one = (n) => range(n).map((i) => [i, i + 1]);
  const whole = [...(layers > 1 ? [["all", "all"]] : []), ...(block.rollout ? [["rollout", "rollout"]] : [])];
  const ways = [["mean", "mean of all"], ["max", "maximum of all"], ["grid", "all, side by side"]];
  const before = block.chosen ?? chosen, several = heads > 1 || layers > 1;
  options($("layer"), [...one(layers), ...whole], layers - 1, before.layer);
  options($("head"), several ? [...ways, ...one(heads)] : one(1), several ? "mean" : 0, before.head);
  $("norm").parentElement.hidden = !block.norms;
  $("words").parentElement.hidden = !block.words;
  names = wordly() ? block.words : block;
  ribbon("rows", block.headings[0]);
  ribbon("columns", block.headings[1]);
  document.body.classList.toggle("signed", Boolean(block.scale));
  redraw();
}

async function* parts(layer, head) {
  for (const l of layer === "all" ? range(block.shape[0]) : [layer]) {
    const buffer = await unpacked(`${block.name}-${l}`);
    const heads = l === "rollout" ? [0] : isNaN(head) ? range(block.shape[1]) : [Number(head)];
    for (const h of heads) yield { layer: l, head: h, map: measured(matrix(block, buffer, h)) };
  }
}

function measured(at) {
  let top = 0;
  for (let i = 0; i < at.length; i++) if (Math.abs(at[i]) > top) top = Math.abs(at[i]);
  return { at, rows: names.rows.length, columns: names.columns.length, top };
}

async function redraw() {
  const mine = ++turn, layer = $("layer").value, head = $("head").value, seen = [];
  const rolled = layer === "rollout", grid = head === "grid" && !rolled;
  if (!block.scale) chosen = block.chosen = { layer, head };
  $("head").disabled = $("norm").disabled = rolled;
  $("maps").setAttribute("aria-busy", "true");
  let all = null, count = 0;
  try {
    for await (const part of parts(layer, head)) {
      if (mine !== turn) return; // something else was chosen meanwhile
      if (grid) seen.push(part);
      all = added(all, part.map.at, head === "max", grid);
      count++;
    }
  } catch (error) {
    if (mine === turn) $("said").textContent = `The weights could not be unpacked: ${error.message}. Use a browser from 2023 or later.`;
    return;
  }
  if (head !== "max") for (let i = 0; i < all.length; i++) all[i] /= count;
  shown = measured(all);
  const top = (grid ? Math.max(...seen.map((part) => part.map.top)) : shown.top) || 1;
  legend(layer, head, top);
  $("view").hidden = $("zoom").hidden = $("keys").hidden = grid;
  $("grid").hidden = !grid;
  show = grid ? () => { panels(seen, top, layer === "all"); paint(); } : () => { lay(); paint(); };
  show();
  pick(picked.r, picked.c);
  $("maps").setAttribute("aria-busy", "false");
}

function added(sum, at, largest, copy) {
  if (!sum) return copy ? at.slice() : at;
  for (let i = 0; i < at.length; i++) sum[i] = largest ? Math.max(sum[i], at[i]) : sum[i] + at[i];
  return sum;
}

function legend(layer, head, top) {
  const at = layer === "rollout" ? "rollout through all layers" : layer === "all" ? "all layers" : `layer ${Number(layer) + 1}`;
  const of = { mean: "mean over heads", max: "maximum over heads", grid: "all heads" }[head] ?? `head ${Number(head) + 1}`;
  const norm = $("norm").checked && block.norms ? ["by value norm"] : [], sums = wordly() ? ["summed over the tokens of words"] : [];
  const name = [block.label, ...(block.scale ? sums : layer === "rollout" ? [at] : [at, of, ...norm])].join(", ");
  $("maps-name").textContent = name;
  $("view").setAttribute("aria-label", name);
  $("low").textContent = block.scale ? signed(-top) : "0";
  const least = block.scale ? signed(top) : percent(top);
  const faint = $("faint").checked ? "; colour by the square root" : "";
  $("top").textContent = `${least}, the largest ${block.scale ? "" : "weight "}shown${faint}`;
}

// --- ribbons of tokens ---
function ribbon(side, name) {
  $(`${side}-name`).textContent = name;
  if ($(side).names === names[side]) return;
  Object.assign($(side), { names: names[side], tops: null, high: null });
  $(side).replaceChildren(...names[side].map((token, i) => make("button", { type: "button", textContent: token, tabIndex: i ? -1 : 0 })));
}

function pointed(event) {
  const i = [...event.currentTarget.children].indexOf(event.target);
  if (i >= 0) event.currentTarget.id === "rows" ? pick(i, -1) : pick(-1, i);
}

function arrows(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], all = event.currentTarget.children;
  const now = [...all].indexOf(document.activeElement);
  const next = all[event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : now + step];
  if (!next) return;
  event.preventDefault();
  all[now].tabIndex = -1; // one stop for Tab; arrows move inside
  next.tabIndex = 0;
  next.focus();
}

// Tokens in sight at once, those scrolled away when the pointer rests: quick at 500 tokens.
function light(side, weight, marked, rest = false) {
  const box = $(side), buttons = box.children, weights = Float32Array.from(buttons, (_, i) => weight(i));
  const top = weights.reduce((a, w) => Math.max(a, Math.abs(w)), 0) || 1;
  box.tops ??= Array.from(buttons, (button) => button.offsetTop - buttons[0].offsetTop);
  box.high ??= box.clientHeight;
  for (let i = 0; i < buttons.length; i++) {
    const away = box.tops[i] - (box.scrolled ?? 0), button = buttons[i];
    if (!rest && (away < -40 || away > box.high)) continue;
    const look = `${Math.round(25 * Math.abs(weights[i]) / top) / 25} ${weights[i] < 0} ${i === marked}`;
    if (button.look === look) continue;
    button.look = look;
    button.style.setProperty("--light", look.split(" ")[0]);
    button.classList.toggle("minus", weights[i] < 0);
    button.classList.toggle("on", i === marked);
  }
  clearTimeout(box.later);
  if (!rest) box.later = setTimeout(light, 150, side, weight, marked, true);
}

const weight = (map, r, c) => map.at[r * map.columns + c];

function pick(r, c, map = shown) {
  picked = { r, c };
  if (!map) return;
  light("columns", (i) => (r >= 0 ? weight(map, r, i) : 0), c);
  light("rows", (i) => (r < 0 && c >= 0 ? weight(map, i, c) : 0), r);
  $("said").textContent = sentence(map, r, c);
  candidates(block.name !== "encoder" && !wordly() ? r : -1);
  soon(paint);
}

function sentence(map, r, c) {
  const share = block.scale ? signed : percent;
  const name = (side, i) => quoted(names[side][i]) + (names[side].length > 40 ? ` (${i + 1})` : ""); // which of many
  if (r < 0 && c < 0) return "Point at a token or at a cell of the heatmap, or use Tab and the arrow keys.";
  if (r >= 0 && c >= 0) {
    const looks = [name("rows", r), name("columns", c), share(weight(map, r, c))];
    return block.scale ? `${looks[0]} from ${looks[1]}: ${looks[2]} (${block.label})` : `${looks[0]} looks at ${looks[1]} with ${looks[2]}`;
  }
  const from = r >= 0, side = from ? "columns" : "rows", all = names[side].map((_, i) => [from ? weight(map, r, i) : weight(map, i, c), i]);
  const some = all.filter(([w]) => w !== 0); // a token of the future is nobody's choice
  const most = (some.length ? some : all).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 3);
  const list = most.map(([w, i]) => `${name(side, i)} ${share(w)}`).join(", ");
  if (block.scale) return from ? `${name("rows", r)}, most from: ${list}` : `${name("columns", c)}, most for: ${list}`;
  return from ? `${name("rows", r)} looks most at ${list}` : `${name("columns", c)} is looked at most by ${list}`;
}

function candidates(step) {
  $("step").hidden = !data.candidates.length;
  const tokens = data.candidates[step] ?? [];
  $("step-name").textContent = tokens.length ? `most likely at step ${step + 1}` : "point at an output token to see what else was likely";
  $("candidates").replaceChildren(...tokens.map(([token, p]) => {
    const item = make("li", { className: token === names.rows[step] ? "on" : "" }, make("bdi", {}, token), make("span", {}, percent(p)));
    item.style.setProperty("--share", p);
    return item;
  }));
}

// --- the heatmap: only what is seen is drawn, and its labels stay ---
let zoom = 1, fit = 1, cell = 1, line = 1, left = 0, above = 0, picture = null, ramp, ink; // a cell is cell × line
const waiting = new Set();
function soon(work) { // once, before the next frame
  if (!waiting.has(work)) requestAnimationFrame(() => { waiting.delete(work); work(); });
  waiting.add(work);
}
const font = (pen, weight) => { pen.font = `${weight} ${LABEL}px system-ui, "DejaVu Sans", sans-serif`; };

function ramps() { // 511 colours, from −1 through 0 to 1
  const style = getComputedStyle(document.documentElement), css = (name) => style.getPropertyValue(name).trim();
  ink = { text: css("--ink"), line: css("--line"), mark: `rgb(${css("--other")})` };
  const [zero, more, full, less, least] = ["--zero", "--more", "--full", "--less", "--least"].map((n) => css(n).split(" ").map(Number));
  ramp = Uint32Array.from(range(511), (i) => {
    const t = Math.abs(i - 255) / 127.5, [middle, end] = i < 255 ? [less, least] : [more, full];
    const [from, to, part] = t < 1 ? [zero, middle, t] : [middle, end, t - 1];
    const [r, g, b] = from.map((v, k) => Math.round(v + part * (to[k] - v)));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

// One pixel a weight, or the strongest of across × down: what is thin does not fade away.
function image(map, top, across, down = across) {
  const wide = Math.ceil(map.columns / across), high = Math.ceil(map.rows / down), faint = $("faint").checked;
  const pixels = new ImageData(wide, high), colours = new Uint32Array(pixels.data.buffer), strongest = new Float32Array(wide * high);
  for (let r = 0, i = 0; r < map.rows; r++) for (let c = 0; c < map.columns; c++, i++) {
    const to = Math.floor(r / down) * wide + Math.floor(c / across);
    if (Math.abs(map.at[i]) > Math.abs(strongest[to])) strongest[to] = map.at[i];
  }
  strongest.forEach((w, i) => {
    const t = faint ? Math.sign(w) * Math.sqrt(Math.abs(w) / top) : w / top;
    colours[i] = ramp[255 + Math.round(255 * t)];
  });
  const canvas = make("canvas", { width: wide, height: high });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

function widest(tokens, room) {
  const pen = $("map").getContext("2d");
  font(pen, 600);
  return Math.min(room, 12 + Math.ceil(Math.max(...tokens.map((token) => pen.measureText(token).width))));
}

function lay() { // sizes, then the picture
  const view = $("view"), most = parseFloat(getComputedStyle(view).maxHeight) || 900; // paper: one page
  left = widest(names.rows, view.clientWidth * 0.34);
  above = widest(names.columns, 150);
  const room = [(view.clientWidth - left - 4) / shown.columns, (most - above - 4) / shown.rows]; // for each cell
  const sizes = room.map((own, i) => Math.max(1, Math.min(34, own, Math.max(24, room[1 - i])))); // square, but few rows are not thin
  fit = Math.min(...sizes);
  [cell, line] = sizes.map((size) => Math.min(48, size * zoom));
  $("larger").disabled = Math.min(cell, line) > 47;
  $("smaller").disabled = zoom <= 1;
  $("sheet").style.width = `${left + cell * shown.columns + 2}px`;
  $("sheet").style.height = `${above + line * shown.rows + 2}px`;
  const [across, down] = [cell, line].map((size) => Math.max(1, Math.round(1 / (size * (devicePixelRatio || 1)))));
  const canvas = image(shown, shown.top || 1, across, down);
  picture = { canvas, wide: cell * across * canvas.width, high: line * down * canvas.height };
}

function paint() {
  if ($("view").hidden) return margins();
  if (!picture) return;
  const view = $("view"), canvas = $("map"), pen = canvas.getContext("2d"), sharp = devicePixelRatio || 1;
  const width = Math.min(view.clientWidth, $("sheet").offsetWidth), height = Math.min(view.clientHeight, $("sheet").offsetHeight);
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  pen.scale(sharp, sharp);
  const x0 = left - view.scrollLeft, y0 = above - view.scrollTop;
  pen.save();
  pen.beginPath();
  pen.rect(left - 1, above - 1, width, height);
  pen.clip();
  pen.imageSmoothingEnabled = picture.wide * sharp < picture.canvas.width;
  pen.drawImage(picture.canvas, x0, y0, picture.wide, picture.high);
  pen.strokeStyle = ink.line;
  pen.strokeRect(x0 - 0.5, y0 - 0.5, cell * shown.columns + 1, line * shown.rows + 1);
  pen.strokeStyle = ink.mark;
  pen.lineWidth = cell < 4 ? 1 : 2;
  const { r, c } = picked;
  if (r >= 0) pen.strokeRect(x0 - 0.5, y0 + r * line - 0.5, cell * shown.columns + 1, line + 1);
  if (c >= 0) pen.strokeRect(x0 + c * cell - 0.5, y0 - 0.5, cell + 1, line * shown.rows + 1);
  pen.restore();
  labels(pen, names.rows, r, line, y0, above, height, (token, at) => pen.fillText(token, left - 6, at, left - 8), "right");
  labels(pen, names.columns, c, cell, x0, left, width, upwards(pen, above, names.columns), "left");
}

// One character, or a mark on a circle or an Arabic tatweel; specials such as <eos> are words.
const single = (token) => [...token.replace(/^[◌ـ]/, "")].length < 2;

// Words are turned to go upwards; characters stand upright where all tokens are characters.
function upwards(pen, high, tokens) {
  const upright = tokens.every((token) => single(token) || /^<.*>$/.test(token));
  return (token, at) => {
    pen.save();
    pen.translate(at, high - 6);
    if (upright && single(token)) {
      pen.textAlign = "center";
      pen.fillText(token, 0, -LABEL / 2);
    } else {
      pen.rotate(-Math.PI / 2);
      pen.fillText(token, 0, 0, high - 8);
    }
    pen.restore();
  };
}

function labels(pen, tokens, marked, size, start, from, to, write, align) {
  const every = Math.ceil((LABEL + 2) / size), where = (i) => start + (i + 0.5) * size; // long inputs: every second, third … name
  const first = Math.max(0, Math.floor((from - start) / size)), last = Math.min(tokens.length - 1, Math.floor((to - start) / size));
  pen.textBaseline = "middle";
  pen.textAlign = align;
  pen.direction = "ltr";
  for (let i = Math.ceil(first / every) * every; i <= last; i += every) {
    if (i === marked || (marked >= 0 && Math.abs(i - marked) * size < LABEL + 1)) continue; // room for the marked one
    font(pen, 400);
    pen.fillStyle = ink.text;
    write(tokens[i], where(i));
  }
  if (marked < first || marked > last) return;
  font(pen, 600);
  pen.fillStyle = ink.mark;
  write(tokens[marked], where(marked));
}

function under(event) {
  const x = event.offsetX, y = event.offsetY, view = $("view");
  const c = x < left ? -1 : Math.floor((x - left + view.scrollLeft) / cell);
  const r = y < above ? -1 : Math.floor((y - above + view.scrollTop) / line);
  if (r < shown.rows && c < shown.columns && (r >= 0 || c >= 0) && (r !== picked.r || c !== picked.c)) pick(r, c);
}

function zoomed(factor) {
  const view = $("view"), { r, c } = picked; // what is picked stays in the middle, or else what is there
  const x = c >= 0 ? c : (view.scrollLeft + view.clientWidth / 2 - left) / cell;
  const y = r >= 0 ? r : (view.scrollTop + view.clientHeight / 2 - above) / line;
  zoom = factor ? Math.max(1, Math.min(zoom * factor, 48 / fit)) : 1;
  lay();
  view.scrollLeft = x * cell + left - view.clientWidth / 2;
  view.scrollTop = y * line + above - view.clientHeight / 2;
  paint();
}

function keys(event) {
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9] }[event.key];
  const factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 0 }[event.key];
  if ((!move && factor === undefined) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (!move) return zoomed(factor);
  const to = (now, step, count) => (now < 0 ? 0 : Math.max(0, Math.min(count - 1, now + step)));
  const r = to(picked.r, move[0], shown.rows), c = to(picked.c, move[1], shown.columns);
  const view = $("view"), into = (low, size, now, room) => Math.min(low, Math.max(now, low + size - room));
  view.scrollLeft = into(c * cell, left + cell, view.scrollLeft, view.clientWidth - 4);
  view.scrollTop = into(r * line, above + line, view.scrollTop, view.clientHeight - 4);
  pick(r, c);
}

// --- side by side ---
function panels(seen, top, layered) {
  const across = layered ? block.shape[1] : Math.min(4, block.shape[1]), room = $("maps").clientWidth / across, long = room > 130;
  const strip = (side) => make("canvas", { className: `names ${side}`, width: 0, height: 0 });
  $("grid").style.gridTemplateColumns = `auto repeat(${across}, minmax(3rem, ${Math.max(8, shown.columns)}rem))`;
  $("grid").replaceChildren(make("i"), ...range(across).map(() => strip("over")), ...seen.flatMap(({ layer, head, map }, i) => {
    const canvas = image(map, top, Math.max(1, Math.round(Math.max(map.columns, map.rows) / (room * (devicePixelRatio || 1)))));
    const name = [...(layered ? [`layer ${Number(layer) + 1}`] : []), `head ${head + 1}`].join(" · ");
    const panel = make("button", { type: "button", title: "show this head" }, canvas, long ? name : name.replace(/[a-z]+ /g, ""));
    panel.setAttribute("aria-label", `show ${name}`);
    panel.onclick = () => { $("layer").value = layer; $("head").value = head; redraw().then(() => $("view").focus()); };
    canvas.onpointermove = (event) => pick(
      Math.max(0, Math.min(map.rows - 1, Math.floor(event.offsetY / canvas.clientHeight * map.rows))),
      Math.max(0, Math.min(map.columns - 1, Math.floor(event.offsetX / canvas.clientWidth * map.columns))), map);
    return i % across ? [panel] : [strip("beside"), panel];
  }));
}

// The tokens over the first row of panels, and beside the first panel of each.
function margins() {
  const sharp = devicePixelRatio || 1, wide = widest(names.rows, $("maps").clientWidth * 0.15), high = widest(names.columns, 90);
  for (const canvas of $("grid").querySelectorAll(".beside")) canvas.style.width = `${wide}px`;
  const panel = $("grid").querySelector("button canvas"), [width, height] = [panel.clientWidth, panel.clientHeight];
  for (const canvas of $("grid").querySelectorAll(".names")) {
    const over = canvas.className.endsWith("over"), [x, y] = over ? [width + 16, high] : [wide, height + 16], pen = canvas.getContext("2d");
    Object.assign(canvas, { width: x * sharp, height: y * sharp });
    Object.assign(canvas.style, { width: `${x}px`, height: `${y}px` });
    pen.scale(sharp, sharp);
    if (over) labels(pen, names.columns, picked.c, width / shown.columns, 8, 0, x, upwards(pen, y, names.columns), "left");
    else labels(pen, names.rows, picked.r, height / shown.rows, 8, 0, y, (token, at) => pen.fillText(token, x - 6, at, x - 8), "right");
  }
}

// --- the beam, as a tree: steps from left to right, what went on in one row ---
const RANK = { chosen: 0, kept: 1, ended: 2, dropped: 3 };
const nodes = data.tree.map(([token, parent, step, p, total, fate]) => ({ token, parent, step, p, total, fate }));
function upTo(i) {
  const path = [];
  for (; i >= 0; i = nodes[i].parent) path.unshift(i);
  return path;
}
function told(i) {
  const { total, fate } = nodes[i];
  return `${quoted(upTo(i).map((j) => nodes[j].token).join(" "))} · log-probability ${signed(total, "")} (${percent(Math.exp(total))}) · ${fate}`;
}

function draw(tag, attributes, ...inside) {
  const element = document.createElementNS($("tree").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

function rowsOf(seen) { // seen: numbers of nodes, parents first
  const onward = new Map(), row = new Map(), busy = [];
  for (const i of seen) {
    const rival = nodes[onward.get(nodes[i].parent)];
    if (!rival || RANK[nodes[i].fate] - RANK[rival.fate] < 0) onward.set(nodes[i].parent, i);
  }
  for (const i of seen) {
    const { parent, step } = nodes[i];
    if (parent >= 0 && onward.get(parent) === i) { row.set(i, row.get(parent)); continue; }
    let last = i;
    while (onward.has(last)) last = onward.get(last);
    let r = parent < 0 ? 0 : row.get(parent) + 1;
    while ((busy[r] ??= []).some(([from, to]) => from <= nodes[last].step && step <= to)) r++;
    busy[r].push([step, nodes[last].step]);
    row.set(i, r);
  }
  return { row, count: busy.length };
}

function tree() {
  const seen = range(nodes.length).filter((i) => nodes[i].fate !== "dropped" || $("dropped").checked);
  seen.sort((a, b) => (nodes[b].fate === "chosen") - (nodes[a].fate === "chosen") || a - b);
  const { row, count } = rowsOf(seen), pen = document.createElement("canvas").getContext("2d"), wide = [], x = [4], HIGH = 36, PITCH = 46;
  const long = (text, size) => { pen.font = `600 ${size}px system-ui, "DejaVu Sans", sans-serif`; return pen.measureText(text).width + 16; };
  const label = ({ token, fate }) => `${{ chosen: "✓ ", ended: "■ " }[fate] ?? ""}${token}`;
  for (const i of seen) {
    const { step, p } = nodes[i];
    wide[step] = Math.max(wide[step] ?? 44, long(label(nodes[i]), 13), long(percent(p), 10.5));
  }
  wide.forEach((w, step) => { x[step + 1] = x[step] + w + 30; });
  const y = (i) => 4 + row.get(i) * PITCH, edges = [], boxes = [];
  for (const i of seen) {
    const { parent, step, fate, p } = nodes[i], middle = x[step] + wide[step] / 2, place = y(i) + HIGH / 2;
    if (parent >= 0) {
      const from = x[step] - 30, begin = y(parent) + HIGH / 2;
      edges.push(draw("path", { class: fate, d: `M${from} ${begin}C${from + 18} ${begin} ${x[step] - 18} ${place} ${x[step]} ${place}` }));
    }
    const said = { role: "img", "aria-label": `${nodes[i].token}, ${percent(p)}, ${fate}` };
    boxes.push(draw("g", { class: `node ${fate}`, "data-i": i, tabindex: boxes.length ? -1 : 0, ...said },
      draw("rect", { x: x[step], y: y(i), width: wide[step], height: HIGH, rx: 6 }),
      draw("text", { x: middle, y: y(i) + 16, "text-anchor": "middle" }, label(nodes[i])),
      draw("text", { x: middle, y: y(i) + 30, "text-anchor": "middle", class: "share" }, percent(p))));
  }
  const width = x[x.length - 1], height = count * PITCH;
  for (const [name, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) $("tree").setAttribute(name, value);
  $("tree").replaceChildren(...edges, ...boxes);
  const parents = new Set(seen.map((i) => nodes[i].parent)), leaves = seen.filter((i) => !parents.has(i));
  $("leaves").replaceChildren(...leaves.sort((a, b) => nodes[b].total - nodes[a].total).map((i) => make("li", {}, told(i))));
  $("tree").onkeydown = (event) => climb(event, boxes, row);
}

function tell(box) {
  if (!box) return;
  const path = new Set(upTo(Number(box.dataset.i)).map(String));
  for (const other of $("tree").querySelectorAll("g.node")) other.classList.toggle("on", path.has(other.dataset.i));
  $("path").textContent = told(Number(box.dataset.i));
}

function climb(event, boxes, row) {
  const now = Number(event.target.closest("g.node")?.dataset.i), all = boxes.map((box) => Number(box.dataset.i));
  const column = all.filter((i) => nodes[i].step === nodes[now].step).sort((a, b) => row.get(a) - row.get(b));
  const beside = (step) => column[column.indexOf(now) + step], child = all.find((i) => nodes[i].parent === now);
  const next = { ArrowLeft: nodes[now].parent, ArrowRight: child, ArrowUp: beside(-1), ArrowDown: beside(1) }[event.key];
  const box = boxes[all.indexOf(next)];
  if (!box) return;
  event.preventDefault();
  event.target.setAttribute("tabindex", -1);
  box.setAttribute("tabindex", 0);
  box.focus();
  box.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// --- begin ---
const again = () => { for (const side of ["rows", "columns"]) $(side).tops = $(side).high = null; show(); };
const recolour = () => { ramps(); show(); }; // at once: a printer does not wait
document.querySelector(".texts").hidden = !data.in && !data.out;
for (const id of ["in", "out", "exact"]) $(id).textContent = data[id];
$("becomes").hidden = !data.in; // a language model reads no source
$("notes").replaceChildren(...data.notes.map((note) => make("li", {}, note)));
$("limit").hidden = data.blocks.some((b) => b.scale) || !data.blocks.some((b) => b.name === "cross" && Math.max(...b.shape.slice(2)) > 128);
$("others").hidden = !data.alternatives.length;
$("alternatives").replaceChildren(...data.alternatives.map(([text, score]) =>
  make("li", {}, make("bdi", {}, text), make("span", {}, ` ${signed(score, "")}`))));
options($("block"), data.blocks.map((b, i) => [i, b.label]), 0);
$("block").onchange = $("words").onchange = () => { picked = FIRST; zoom = 1; choose(); };
$("layer").onchange = $("head").onchange = $("norm").onchange = $("faint").onchange = redraw;
for (const side of ["rows", "columns"]) {
  $(side).onpointerover = $(side).onpointerdown = pointed;
  $(side).addEventListener("focusin", pointed);
  $(side).onkeydown = arrows;
  $(side).onscroll = () => { $(side).scrolled = $(side).scrollTop; };
}
$("map").onpointermove = $("map").onpointerdown = under;
$("view").onkeydown = keys;
$("view").onscroll = () => soon(paint);
for (const [id, factor] of [["larger", 1.5], ["smaller", 1 / 1.5], ["fit", 0]]) $(id).onclick = () => zoomed(factor);
matchMedia("(prefers-color-scheme: dark)").onchange = matchMedia("print").onchange = recolour;
window.onresize = () => soon(again);
ramps();
choose();
$("beam").hidden = !nodes.length;
$("dropped").onchange = tree;
for (const name of ["pointerover", "focusin"]) $("tree").addEventListener(name, (event) => tell(event.target.closest("g.node")));
if (nodes.length) setTimeout(tree); // the heatmap first
