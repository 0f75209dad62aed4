// The plan as a graph. Layers and the order in them are in the data; a box that opens pushes its neighbours in the layer aside,
// and the layers below down.
const STEP = { w: 196, h: 46 }, GAP = 34, PAD = 16, HEAD = 30, OPEN_AT_FIRST = 48;
const SVG = 'http://www.w3.org/2000/svg';
const canvas = document.getElementById('canvas'), scene = document.getElementById('scene');
const opened = new Set([0]);

// By group: the steps in it, also in boxes in it. By step: the group that it is in.
const stepsIn = groups.map(() => []), home = [];
groups.forEach((group, at) => {
  for (const layer of group.layers) for (const [item] of layer) if (item.step !== undefined) home[item.step] = at;
});
plan.steps.forEach((_, step) => {
  for (let at = home[step]; at !== null && at !== undefined; at = groups[at].parent) stepsIn[at].push(step);
});

const svg = (name, attributes, ...children) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const label = (text, attributes) => svg('text', attributes, text);
const clip = (text, room) => (text.length > room ? text.slice(0, room - 1) + '…' : text);

/// The size of an open box and where everything in it lies, from its corner.
function measure(at) {
  const boxes = [], ways = new Map();
  let top = HEAD, left = Infinity, right = -Infinity;
  for (const layer of groups[at].layers) {
    const sizes = layer.map(([item]) => size(item));
    const growth = sizes.map((s, i) => (layer[i][0].way === undefined ? s.w - STEP.w : 0));
    const height = Math.max(...sizes.map(s => s.h));
    let shift = -growth.reduce((a, b) => a + b, 0) / 2;
    layer.forEach(([item, x], i) => {
      const { w, h, inner } = sizes[i], middle = x + shift + growth[i] / 2;
      shift += growth[i];
      [left, right] = [Math.min(left, middle - w / 2), Math.max(right, middle + w / 2)];
      if (item.way !== undefined) {
        if (!ways.has(item.way)) ways.set(item.way, []);
        ways.get(item.way).push([middle, top], [middle, top + height]);
      } else boxes.push({ item, x: middle - w / 2, y: top + (height - h) / 2, w, h, inner });
    });
    top += height + GAP;
  }
  const move = PAD - (left === Infinity ? 0 : left);
  boxes.forEach(box => { box.x += move; });
  for (const points of ways.values()) points.forEach(point => { point[0] += move; });
  const heading = 150 + 8 * groups[at].label.length;
  return { w: Math.max(right - left + 2 * PAD, heading) || heading, h: top - GAP + PAD, boxes, ways };
}

function size(item) {
  if (item.way !== undefined) return { w: 8, h: 0 };
  if (item.step !== undefined || !opened.has(item.group)) return STEP;
  const inner = measure(item.group);
  return { w: inner.w, h: inner.h, inner };
}

// What is drawn: by step, the box that shows it (its own, or the closed one that it is in); ways of edges by box.
let shown = [], passages = [], bounds = { w: 1, h: 1 };

function draw() {
  const under = [], over = [];
  shown = []; passages = [];
  const root = measure(0);
  bounds = root;
  const put = (inner, group, x, y) => {
    passages[group] = new Map([...inner.ways].map(([way, points]) => [way, points.map(([px, py]) => [px + x, py + y])]));
    for (const box of inner.boxes) {
      const place = { ...box, x: box.x + x, y: box.y + y };
      if (box.item.step !== undefined) {
        place.key = 's' + box.item.step;
        shown[box.item.step] = place;
        over.push(stepBox(box.item.step, place));
      } else if (box.inner) {
        under.push(groupBox(box.item.group, place, true));
        over.push(openHeading(box.item.group, place));
        put(box.inner, box.item.group, place.x, place.y);
      } else {
        place.key = 'g' + box.item.group;
        for (const step of stepsIn[box.item.group]) shown[step] = place;
        over.push(groupBox(box.item.group, place, false));
      }
    }
  };
  put(root, 0, 0, 0);
  scene.replaceChildren(...under, ...edges(), ...over);
  mark();
}

function stepBox(at, place) {
  const { w, h } = place;
  const step = plan.steps[at], modules = step.modules.join(', ');
  const what = step.kind === 'kernel' ? step.operators.map(short).join(', ') : short(step.operator);
  // Modules by what the box around does not say.
  const outside = groups[home[at]].path, inner = step.modules.map(path => (outside && path.startsWith(outside + '.') ? path.slice(outside.length + 1) : path));
  const where = inner.filter(path => path !== outside).join(', ');
  const sub = `${shareOf(at)} · ${where || step.name || 'libtorch'}`;
  return svg('g', { class: 'step ' + classes[at], 'data-step': at, transform: translate(place) },
    svg('title', {}, `${at}: ${step.name || step.operator}\n${modules}`),
    svg('rect', { width: w, height: h, rx: 6 }),
    label(clip(what, 26), { x: 10, y: 19 }),
    label(clip(sub, 29), { x: 10, y: 36, class: 'sub' }));
}

function told(at) {
  const steps = stepsIn[at], us = steps.reduce((sum, step) => sum + timeOf(step), 0);
  return { steps, us, sub: `${steps.length} steps · ${percent(us / total)}` };
}

const translate = ({ x, y }) => `translate(${x.toFixed(1)} ${y.toFixed(1)})`;

function groupBox(at, place, open) {
  const { steps, us, sub } = told(at), { w, h } = place;
  const box = svg('g', { class: open ? 'group open' : 'group', 'data-group': at, transform: translate(place) },
    svg('title', {}, `${groups[at].path || groups[at].label}: ${sub}, ${time(us)}`),
    svg('rect', { width: w, height: h, rx: 8 }));
  if (!open) {
    box.append(label('+ ' + clip(groups[at].label, 24), { x: 10, y: 19, class: 'title' }),
      label(sub, { x: 10, y: 35, class: 'sub' }), ...mix(steps, us, w, h));
  }
  return box;
}

/// What an open box says, before the edges that come into it; a click on it closes the box.
function openHeading(at, place) {
  return svg('g', { class: 'heading', 'data-group': at, transform: translate(place) },
    svg('rect', { class: 'head', width: place.w, height: HEAD - 4 }),
    label('− ' + groups[at].label, { x: 10, y: 19, class: 'title' }),
    label(told(at).sub, { x: place.w - 10, y: 19, class: 'sub', 'text-anchor': 'end' }));
}

/// A line that says by its colours which kinds of steps take the time of a closed box.
function mix(steps, us, w, h) {
  const parts = new Map();
  for (const step of steps) parts.set(classes[step], (parts.get(classes[step]) || 0) + (us > 0 ? timeOf(step) / us : 1 / steps.length));
  let x = 10;
  return [...parts].map(([kind, part]) => {
    const rect = svg('rect', { class: 'mix ' + kind, x: x.toFixed(1), y: h - 6, width: (part * (w - 20)).toFixed(1), height: 3 });
    x += part * (w - 20);
    return rect;
  });
}

/// Edges between what is drawn, those of the same ends as one.
let drawn = new Map();
function edges() {
  drawn = new Map();
  links.forEach(link => {
    const [a, b] = [shown[link.from], shown[link.to]];
    if (!a || !b || a.key === b.key) return;
    const key = a.key + '-' + b.key;
    if (!drawn.has(key)) drawn.set(key, { a, b, links: [], bytes: 0, key });
    const edge = drawn.get(key);
    edge.links.push(link);
    edge.bytes += link.bytes;
  });
  const most = Math.max(1, ...links.map(link => link.bytes));
  const cost = link => Math.max(0, ...link.cuts.map(at => plan.edges[at].cost_us ?? 0)), dearest = Math.max(0, ...links.map(cost));
  return [...drawn.values()].map(edge => {
    const d = route(edge), dear = Math.max(...edge.links.map(cost)), cut = dear > 0 && dear * 2 >= dearest;
    const width = 1 + 2 * Math.min(1, Math.sqrt(Math.max(...edge.links.map(link => link.bytes)) / most));
    return svg('g', { class: cut ? 'edge cut' : 'edge', 'data-edge': edge.key },
      svg('path', { d, class: cut ? 'cut' : '', style: `stroke-width:${width.toFixed(1)}` }),
      svg('path', { d, class: 'area' }, svg('title', {}, `${inBytes(edge.bytes)}${edge.links.some(l => l.cuts.length) ? ', not fused' : ''}${dear > 0 ? `, at most ${time(dear)}` : ''}`)));
  });
}

function route({ a, b, links: [link] }) {
  const from = [a.x + a.w / 2, a.y + a.h], to = [b.x + b.w / 2, b.y];
  const way = link.ways.flatMap(([group, at, back]) => {
    const points = (passages[group] && passages[group].get(at)) || [];
    return back ? [...points].reverse() : points;
  });
  const points = [from, ...way, to];
  let d = `M${from[0].toFixed(1)},${from[1].toFixed(1)}`;
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1], [x1, y1] = points[i], middle = (y0 + y1) / 2;
    d += x0 === x1 ? ` L${x1.toFixed(1)},${y1.toFixed(1)}`
      : ` C${x0.toFixed(1)},${middle.toFixed(1)} ${x1.toFixed(1)},${middle.toFixed(1)} ${x1.toFixed(1)},${y1.toFixed(1)}`;
  }
  return d;
}

// Pan and zoom.
const view = { x: 0, y: 0, k: 1 };
const apply = () => scene.setAttribute('transform', `translate(${view.x.toFixed(2)} ${view.y.toFixed(2)}) scale(${view.k.toFixed(4)})`);

function zoom(factor, x, y) {
  const k = Math.min(4, Math.max(0.02, view.k * factor));
  view.x = x - (x - view.x) * k / view.k;
  view.y = y - (y - view.y) * k / view.k;
  view.k = k;
  apply();
}

/// A scale at which text can just be read: 7 px.
const READABLE = 7 / 12;

/// All of the plan above the legend, but no smaller than `least`: then its beginning.
function fit(least = READABLE) {
  const { width, height: all } = canvas.getBoundingClientRect();
  const height = all - document.querySelector('#graph .legend').offsetHeight - 10;
  const k = Math.min(1.2, (width - 40) / bounds.w, (height - 40) / bounds.h);
  view.k = Math.max(k, least);
  const [w, first] = [bounds.w * view.k, shown[0]];
  const start = first ? width / 2 - (first.x + first.w / 2) * view.k : 0;
  view.x = w <= width ? (width - w) / 2 : Math.max(width - 20 - w, Math.min(20, start));
  view.y = Math.max(20, (height - bounds.h * view.k) / 2);
  apply();
}

function centre(place) {
  const { width, height } = canvas.getBoundingClientRect();
  view.k = Math.max(view.k, 0.6);
  view.x = width / 2 - (place.x + place.w / 2) * view.k;
  view.y = height / 2 - (place.y + place.h / 2) * view.k;
  apply();
}

/// Opens or closes a box, which stays where it is on the screen.
function toggle(at) {
  const where = () => scene.querySelector(`[data-group="${at}"]`).getBoundingClientRect();
  const before = where();
  if (!opened.delete(at)) opened.add(at);
  draw();
  const after = where();
  view.x += (before.left + before.right - after.left - after.right) / 2;
  view.y += before.top - after.top;
  apply();
}

/// Opens what is around a step.
function reveal(step) {
  let closed = false;
  for (let at = home[step]; at !== null && at !== undefined; at = groups[at].parent) if (!opened.has(at)) { opened.add(at); closed = true; }
  if (closed) draw();
}

/// At first boxes are open as far as what is in them is not too much. Layers that repeat are shown once.
function openSome() {
  let count = 1;
  const queue = [0];
  while (queue.length) {
    const at = queue.shift();
    const inside = groups[at].layers.flat().map(([item]) => item).filter(item => item.way === undefined);
    if (at !== 0 && (groups[at].repeats || count + inside.length > OPEN_AT_FIRST)) continue;
    count += inside.length;
    opened.add(at);
    for (const item of inside) if (item.group !== undefined) queue.push(item.group);
  }
}
