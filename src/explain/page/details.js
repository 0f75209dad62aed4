// What is said of a step, a box or an edge. All text of the model enters the page as text, never as markup.
const details = document.getElementById('details');
const el = (name, attributes, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'on') element.addEventListener('click', value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
};
/// Text in which what stands between backticks is code.
const marked = text => {
  const parts = text.split('`');
  return parts.length % 2 ? parts.map((part, at) => (at % 2 ? el('code', {}, part) : part)) : [text];
};
const heading = text => el('h3', {}, text);
const list = items => el('ul', {}, ...items.map(item => el('li', {}, item)));
const facts = pairs => el('dl', {}, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== '')
  .flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
const toStep = (at, text) => el('button', { class: 'link', on: () => select({ step: at }, true) }, text || `${at} ${nameOf(at)}`);

/// An operator with the module that it is of.
const named = (name, shown) => el('span', {}, shown || name, moduleOf.has(name) ? el('small', { class: 'module' }, ' ', moduleOf.get(name)) : null);

function tensors(title, all) {
  if (!all.length) return [];
  const row = ({ name, type, bytes, step }) => el('tr', {},
    el('td', {}, step === null ? named(name) : toStep(step, named(name))), el('td', {}, type), el('td', {}, inBytes(bytes)));
  return [heading(title), el('table', {}, ...all.map(row))];
}

function schedule({ tiles, blocks, measured, remembered, choice, us }) {
  if (blocks) return [heading('Schedule'), facts([['blocks', blocks]])];
  const how = measured ? (remembered ? 'measured in an earlier compilation' : 'measured') : 'as predicted; --tune measures others';
  const row = (time_, at) => el('tr', { class: at === choice ? 'chosen' : '' },
    el('td', {}, at === 0 ? 'as predicted' : `candidate ${at}`, at === choice ? ', taken' : ''),
    el('td', {}, time_ === null ? 'failed' : time(time_)));
  return [heading('Schedule'), facts([['tiles', tiles], ['chosen', how]]), us.length ? el('table', {}, ...us.map(row)) : null];
}

function candidates(all) {
  if (!all || !all.length) return [];
  const several = new Set(all.map(other => other.operator)).size > 1;
  const row = other => el('tr', { class: other.chosen ? 'chosen' : '' },
    el('td', { style: 'white-space:normal' }, several ? named(other.operator) : '', several ? ': ' : '', other.schedule ?? 'libtorch\u2019s call', other.chosen ? ', taken' : ''),
    el('td', {}, time(other.predicted_us)), el('td', {}, other.measured_us === null ? '' : time(other.measured_us)));
  const alone = how => el('th', { title: `microseconds, ${how}, of the operator alone, without neighbours in its kernel` }, `${how} alone`);
  return [heading('Candidates'), el('table', {}, el('tr', {}, el('th', {}, ''), alone('predicted'), alone('measured')), ...all.map(row))];
}

function cut(at) {
  const { producer, consumer, producer_step, consumer_step, verdict, remedy, bytes, cost_us, unmet } = plan.edges[at];
  const end = (step, name) => (step === null ? named(name) : toStep(step, named(name)));
  const cost = typeof cost_us === 'number' ? `, at most ${time(cost_us)} by the cost model` : '';
  return el('p', {}, end(producer_step, producer), ' → ', end(consumer_step, consumer), ', ', inBytes(bytes), cost, ': ', el('b', {}, ...marked(verdict)), verdict.endsWith('.') ? '' : '.',
    ...(unmet ? marked(' The hint `together` asks in vain for one kernel of the two.') : []), remedy ? el('span', {}, ' What would change it: ', ...marked(remedy), '.') : '');
}

function showStep(at) {
  const step = plan.steps[at], kernel = step.kind === 'kernel';
  const cuts = [...plan.edges.keys()].filter(e => {
    const { fused, producer_step, consumer_step } = plan.edges[e];
    return !fused && (producer_step === at || consumer_step === at);
  });
  const measured = kernel && step.schedule && step.schedule.measured ? step.schedule.us[step.schedule.choice] : null;
  const why = [step.reason, step.outer_loop, step.horizontal_refusal && `A launch of its own: ${step.horizontal_refusal}`].filter(Boolean);
  const own = kernel ? step.operators : [step.operator], parts = within[at].map(known => known.operator).filter(name => !own.includes(name));
  const launches = kernel ? plan.steps.filter(s => s.kind === 'kernel' && s.program === step.program).length : 0;
  details.replaceChildren(
    el('h2', {}, nameOf(at)),
    el('span', { class: 'tag ' + classes[at] }, kernel ? step.shape : 'libtorch'),
    facts([
      ['step', `${at} of ${plan.steps.length}`],
      ['modules', step.modules.join(', ')],
      ['source', (step.lines || []).join(', ')],
      ['time', times[at] ? `${time(times[at][0])} ${times[at][1]}, ${shareOf(at)} of all steps` : 'not known'],
      ['predicted', step.predicted_us === null ? null : `${time(step.predicted_us)} ${predictions[at]}`],
      ['measured', measured ? time(measured) : null],
      ['of the limit', limits[at]],
      ['reads', kernel ? inBytes(step.bytes_read) : null],
      ['writes', kernel ? inBytes(step.bytes_written) + (step.bytes_non_temporal ? `, ${inBytes(step.bytes_non_temporal)} by non-temporal stores` : '') : null],
      ['operations', step.flops ? count(step.flops) : null],
      ['grid', kernel ? `${step.grid} instances` : null],
      ['launch', kernel && step.parts > 1 ? `${step.parts} kernels in one` : null],
      ['program', kernel ? `${step.program}, launched ${launches === 1 ? 'once' : launches + ' times'} in a call` : null],
      ['result', kernel ? null : step.result],
    ]),
    heading('Operators'), list(own.map(name => named(name))),
    ...(parts.length ? [heading('Views, and what is a part of these'), list(parts.map(name => named(name)))] : []),
    ...(why.length ? [heading('Why'), list(why.map(text => el('span', {}, ...marked(text))))] : []),
    ...tensors('Reads', step.reads), ...tensors('Writes', step.writes),
    ...(kernel && step.schedule ? schedule(step.schedule).filter(Boolean) : []), ...candidates(step.candidates),
    ...(cuts.length ? [heading('Edges that were not fused'), ...cuts.map(cut)] : []),
    ...(kernel ? [el('details', { open: '' }, el('summary', {}, 'Block program'), el('pre', {}, plan.programs[step.program])),
      plan.code ? el('p', {}, el('button', { class: 'link', on: () => show('code') }, 'Beside LLVM IR and machine code')) : null] : []).filter(Boolean));
}

function showGroup(at) {
  const steps = stepsIn[at], us = steps.reduce((sum, step) => sum + timeOf(step), 0);
  const row = step => el('tr', {}, el('td', {}, toStep(step)), el('td', {}, times[step] ? about(step) + time(timeOf(step)) : '?'));
  details.replaceChildren(
    el('h2', {}, groups[at].path || groups[at].label),
    facts([['steps', steps.length], ['time', `${time(us)}, ${percent(us / total)} of all`]]),
    el('p', {}, el('button', { class: 'link', on: () => { toggle(at); showGroup(at); } }, opened.has(at) ? 'Close' : 'Open', ' the box')),
    heading('Steps'), el('table', {}, ...steps.map(row)));
}

function showEdge({ a, b, links: all, bytes }) {
  const cuts = all.flatMap(link => link.cuts);
  const passed = all.flatMap(link => plan.steps[link.to].reads.filter(read => read.step === link.from));
  const end = ({ item }) => (item.step !== undefined ? toStep(item.step) : groups[item.group].path || groups[item.group].label);
  details.replaceChildren(
    el('h2', {}, 'Edge'), el('p', {}, end(a), ' → ', end(b)),
    facts([['bytes', inBytes(bytes)]]),
    heading('Why it is not fused'),
    ...(cuts.length ? cuts.map(cut) : [el('p', { class: 'faint' }, 'The value goes through memory because other steps lie between; no rule was asked.')]),
    ...tensors('What goes over it', passed));
}

function showHelp() {
  const key = (keys, what) => el('tr', {}, el('td', {}, ...keys.flatMap(k => [el('kbd', {}, k), ' '])), el('td', { style: 'white-space:normal;text-align:left' }, what));
  details.replaceChildren(
    el('h2', {}, 'Plan'),
    el('p', {}, `${counted(plan.ops_captured, 'operator')} run as ${counted(plan.kernels_fused, 'kernel')} and ${counted(plan.extern_ops, 'libtorch call')}. Click a step for what it computes and why, an edge for why it was not fused, a module to open or close it.`),
    el('table', {}, key(['/'], 'search; Enter: next step found'), key(['↑', '↓'], 'previous, next step'), key(['←', '→'], 'to a producer, to a consumer'),
      key(['Enter'], 'open or close the module'), key(['Tab'], 'to the heads and rows of a table; Enter sorts, or shows the row'), key(['e', 'c'], 'open all, close all'), key(['+', '−', '0'], 'zoom, fit'),
      key(['1', '–', `${tabs.length}`], 'views'), key(['Esc'], 'clear'))); 
}
