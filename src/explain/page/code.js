// The code of the kernel that is chosen, in three columns. A line that is clicked shows what else became of its operator.
const codeView = document.getElementById('code');
/// The step whose code is shown.
let coded = null;

/// The operators that lines of a step's code name: those of the step where the first step of the program has its own.
function operatorsOf(step) {
  const first = plan.steps.find(s => s.kind === 'kernel' && s.program === step.program);
  return plan.code[step.program].operators.map(name => step.operators[first.operators.indexOf(name)] ?? name);
}

/// The first of the most lines in a row that are lit: what stands alone was moved there, out of a loop.
function longestRun(column) {
  let [found, most, first, run] = [null, 0, null, 0];
  for (const line of column.children) {
    run = line.classList.contains('on') ? run + 1 : 0;
    if (run === 1) first = line;
    if (run > most) [found, most] = [first, run];
  }
  return found;
}

function light(operator, from) {
  for (const element of codeView.querySelectorAll('.on')) element.classList.remove('on');
  if (operator === null) return;
  for (const element of codeView.querySelectorAll(`[data-operator="${operator}"]`)) element.classList.add('on');
  for (const column of codeView.querySelectorAll('pre')) {
    const line = longestRun(column);
    if (line && column !== from) column.scrollTop = line.offsetTop - column.offsetTop - column.clientHeight / 3;
  }
}

function column(title, lines) {
  const line = ([text, operator]) => el('span', operator === null ? {} : { 'data-operator': operator, style: `--hue: ${(operator * 137 + 210) % 360}` }, text || ' ');
  return el('section', {}, heading(`${title}, ${lines.length} line${lines.length === 1 ? '' : 's'}`), el('pre', { tabindex: 0 }, ...lines.map(line)));
}

/// Shows the code of a step, where that is a kernel.
function showCode(at) {
  if (at === coded && at !== null) return;
  coded = at;
  const step = at === null ? null : plan.steps[at];
  const code = step && step.kind === 'kernel' && plan.code ? plan.code[step.program] : null;
  if (!code) {
    const why = !plan.code ? 'This plan was written without code.' : step ? 'A libtorch call has no code here.' : 'Choose a kernel, in the graph or the table.';
    codeView.replaceChildren(el('p', { class: 'faint' }, why));
    return;
  }
  const chip = (name, operator) => el('button', { class: 'chip', 'data-operator': operator, style: `--hue: ${(operator * 137 + 210) % 360}`, title: moduleOf.get(name) || '' }, name);
  codeView.replaceChildren(
    el('h2', {}, nameOf(at)),
    el('div', { class: 'chips' }, ...operatorsOf(step).map(chip)),
    el('div', { class: 'code' }, column('Block program', code.block), column('LLVM IR', code.llvm), column(code.language[0].toUpperCase() + code.language.slice(1), code.machine)));
}

codeView.addEventListener('click', event => {
  const target = event.target.closest('[data-operator]');
  if (!target) return;
  light(target.classList.contains('on') ? null : Number(target.dataset.operator), target.closest('pre'));
});
