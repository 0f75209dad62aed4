// Selection, search, keys and tables.
let selected = null, matches = [], match = -1, cuts = 0;

/// Marks what is selected and what was found.
function mark() {
  for (const element of scene.querySelectorAll('.selected, .hit')) element.classList.remove('selected', 'hit');
  const of = step => scene.querySelector(`[data-${shown[step].key[0] === 's' ? 'step' : 'group'}="${shown[step].key.slice(1)}"]`);
  if (matches.length) new Set(matches.map(step => shown[step].key)).forEach(key => {
    scene.querySelector(`[data-${key[0] === 's' ? 'step' : 'group'}="${key.slice(1)}"]`).classList.add('hit');
  });
  // What finds cuts alone is no search for steps.
  scene.classList.toggle('searching', search.value.trim() !== '' && (matches.length > 0 || !cuts));
  if (selected && selected.step !== undefined) of(selected.step).classList.add('selected');
  if (selected && selected.group !== undefined) scene.querySelector(`[data-group="${selected.group}"]`)?.classList.add('selected');
  if (selected && selected.edge) scene.querySelector(`[data-edge="${selected.edge}"]`)?.classList.add('selected');
  for (const row of document.querySelectorAll('tr.selected')) row.classList.remove('selected');
  if (selected && selected.step !== undefined) document.querySelector(`#kernels tr[data-step="${selected.step}"]`)?.classList.add('selected');
}

/// Shows what is known of a step, a group or an edge; `go` moves the graph to it.
function select(what, go) {
  selected = what;
  if (!what) showHelp();
  else if (what.step !== undefined) {
    if (go) { reveal(what.step); centre(shown[what.step]); }
    showStep(what.step);
    if (!codeView.hidden) showCode(what.step);
  } else if (what.group !== undefined) showGroup(what.group);
  else if (drawn.has(what.edge)) showEdge(drawn.get(what.edge));
  details.scrollTop = 0;
  mark();
}

function selectCut(at) {
  const { producer_step: from, consumer_step: to } = plan.edges[at];
  if (from === null || to === null || from === to) { const step = from ?? to; if (step !== null) select({ step }, true); return; }
  reveal(from); reveal(to);
  centre(shown[to]);
  select({ edge: `s${from}-s${to}` });
}

// Views.
const tabs = [...document.querySelectorAll('[role=tab]')];
function show(name) {
  for (const tab of tabs) tab.setAttribute('aria-selected', tab.dataset.view === name);
  for (const section of document.querySelectorAll('.view')) section.hidden = section.id !== name;
  if (name === 'code') showCode(selected?.step ?? null);
  if (location.hash !== '#' + name) history.replaceState(null, '', '#' + name);
}
tabs.forEach(tab => tab.addEventListener('click', () => show(tab.dataset.view)));

document.querySelector('main').addEventListener('click', event => {
  const row = event.target.closest('.view:not(#graph) [data-step], .view:not(#graph) [data-cut]');
  if (!row) return;
  if (row.matches('tr')) stop(row.closest('table'), row);
  if (row.dataset.step !== undefined) select({ step: Number(row.dataset.step) });
  else { show('graph'); selectCut(Number(row.dataset.cut)); canvas.focus(); }
});

// Search.
const search = document.getElementById('search'), found = document.getElementById('found');
const texts = plan.steps.map((step, at) => [step.name, step.shape, ...(step.operators || [step.operator]).flatMap(name => [name, moduleOf.get(name) || '']), ...step.modules,
  ...within[at].flatMap(({ operator, module }) => [operator, module]), step.kind === 'extern' ? 'libtorch' : ''].join(' ').toLowerCase());
function find() {
  const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  matches = words.length ? [...texts.keys()].filter(at => words.every(word => texts[at].includes(word))) : [];
  match = -1;
  const hits = new Set(matches);
  for (const row of document.querySelectorAll('#kernels tr[data-step]')) row.hidden = words.length > 0 && !hits.has(Number(row.dataset.step));
  const rows = [...document.querySelectorAll('#cuts tbody tr, #changes tbody tr')];
  for (const row of rows) {
    const text = `${row.textContent} ${row.dataset.modules || ''}`.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
  cuts = rows.filter(row => row.dataset.cut !== undefined && !row.hidden).length;
  stops();
  found.textContent = words.length ? `${matches.length} of ${texts.length} steps${cuts ? `, ${cuts} cut${cuts > 1 ? 's' : ''}` : ''}` : '';
  mark();
}
search.addEventListener('input', find);
search.addEventListener('keydown', event => {
  if (event.key === 'Enter' && matches.length) {
    match = (match + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
    select({ step: matches[match] }, true);
    found.textContent = `${match + 1} of ${matches.length}`;
  }
  if (event.key === 'Escape') { search.value = ''; find(); canvas.focus(); }
  event.stopPropagation();
});

// Tables.
for (const head of document.querySelectorAll('.sortable th')) head.addEventListener('click', () => {
  const table = head.closest('table'), column = head.cellIndex, body = table.tBodies[0];
  const value = row => { const cell = row.cells[column]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
  const numbers = typeof value(body.rows[0]) === 'number';
  const down = head.getAttribute('aria-sort') ? head.getAttribute('aria-sort') === 'ascending' : numbers;
  const order = (a, b) => (numbers ? value(a) - value(b) : value(a).localeCompare(value(b)));
  const rows = [...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
  for (const other of table.querySelectorAll('th')) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  body.append(...rows);
  stops(table);
});

// Keys in tables: each head that sorts is a stop of Tab, and one row of each table, from which arrows go to the others.
const rowsOf = table => [...table.rows].filter(row => !row.hidden && row.matches('[data-step], [data-cut]'));
function stop(table, row) {
  for (const other of table.querySelectorAll('tr[tabindex="0"]')) other.tabIndex = -1;
  if (row) row.tabIndex = 0;
}
/// Makes the first row that is shown the stop, of one table or of all.
function stops(only) { for (const table of only ? [only] : document.querySelectorAll('.view table')) stop(table, rowsOf(table)[0]); }
for (const head of document.querySelectorAll('.sortable th')) head.tabIndex = 0;
stops();
document.querySelector('main').addEventListener('keydown', event => {
  const target = event.target.closest('.sortable th, .view tr[tabindex]');
  if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = step => {
    const table = target.closest('table'), rows = rowsOf(table), row = rows[rows.indexOf(target) + step];
    if (row) { stop(table, row); row.focus(); }
  };
  const keys = { Enter: () => target.click(), ' ': () => target.click() };
  if (target.matches('tr')) Object.assign(keys, { ArrowDown: () => to(1), ArrowUp: () => to(-1) });
  if (!keys[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  keys[event.key]();
});

// The pointer.
let grip = null;
canvas.addEventListener('pointerdown', event => { grip = { x: event.clientX, y: event.clientY, moved: false, target: event.target }; });
window.addEventListener('pointermove', event => {
  if (!grip) return;
  const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
  if (!grip.moved && Math.hypot(dx, dy) < 4) return;
  Object.assign(grip, { x: event.clientX, y: event.clientY, moved: true });
  canvas.classList.add('moving');
  view.x += dx; view.y += dy;
  apply();
});
window.addEventListener('pointerup', () => {
  canvas.classList.remove('moving');
  if (grip && !grip.moved) pick(grip.target);
  grip = null;
});
function pick(target) {
  const hit = target.closest('[data-step], [data-edge], [data-group]');
  if (!hit) return select(null);
  const { step, edge, group } = hit.dataset;
  if (step !== undefined) select({ step: Number(step) });
  else if (edge !== undefined) select({ edge });
  else {
    // An open box closes by its heading.
    if (!opened.has(Number(group)) || target.matches('.head')) toggle(Number(group));
    select({ group: Number(group) });
  }
}
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const { left, top } = canvas.getBoundingClientRect();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { view.x -= event.deltaX || event.deltaY; apply(); }
  else zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.clientX - left, event.clientY - top);
}, { passive: false });

// Keys.
const all = open => { opened.clear(); opened.add(0); if (open) groups.forEach((_, at) => opened.add(at)); draw(); fit(); };
const middle = factor => { const { width, height } = canvas.getBoundingClientRect(); zoom(factor, width / 2, height / 2); };
const around = (here, key, other) => { const link = links.find(l => l[key] === here); return link ? link[other] : here; };
document.getElementById('fit').addEventListener('click', () => fit());
document.getElementById('expand').addEventListener('click', () => all(true));
document.getElementById('collapse').addEventListener('click', () => all(false));
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const here = selected && selected.step, go = step => select({ step: Math.min(plan.steps.length - 1, Math.max(0, step)) }, true);
  const known = here !== undefined && here !== null;
  const keys = {
    '/': () => { search.focus(); search.select(); },
    Escape: () => { search.value = ''; find(); select(null); },
    ArrowDown: () => go(known ? here + 1 : 0),
    ArrowUp: () => go(known ? here - 1 : 0),
    ArrowRight: () => known && go(around(here, 'from', 'to')),
    ArrowLeft: () => known && go(around(here, 'to', 'from')),
    Enter: () => { const group = selected && (selected.group ?? home[selected.step]); if (group) { toggle(group); select({ group }); } },
    e: () => all(true), c: () => all(false), 0: () => fit(), '+': () => middle(1.25), '=': () => middle(1.25), '-': () => middle(0.8),
  };
  tabs.forEach((tab, at) => { keys[at + 1] = () => show(tab.dataset.view); });
  if (!keys[event.key] || (event.key === 'Enter' && event.target.closest('button'))) return;
  event.preventDefault();
  keys[event.key]();
});

openSome();
draw();
showHelp();
fit(0.8);
if (tabs.some(tab => tab.dataset.view === location.hash.slice(1))) show(location.hash.slice(1));
else if (/^#step-\d+$/.test(location.hash) && plan.steps[location.hash.slice(6)]) select({ step: Number(location.hash.slice(6)) }, true);
