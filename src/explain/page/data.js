// What the page is about, and how it is said.
const { plan, classes, times, predictions, limits, groups, links, modules } = JSON.parse(document.getElementById('data').textContent);
const moduleOf = new Map(Object.entries(modules));
/// By step, the captured operators that are in it.
const within = plan.steps.map(() => []);
for (const operator of plan.operators) if (within[operator.step]) within[operator.step].push(operator);
const timeOf = at => (times[at] ? times[at][0] : 0);
const total = plan.steps.reduce((sum, _, at) => sum + timeOf(at), 0) || 1;
/// `~` where a time is of a libtorch call that was not profiled.
const about = at => (plan.steps[at].kind === 'kernel' || plan.steps[at].measured_us !== null ? '' : '~');
const shareOf = at => (times[at] ? about(at) + percent(timeOf(at) / total) : '?');
const nameOf = at => plan.steps[at].name || plan.steps[at].operator;
/// An operator without its namespace and position.
const short = operator => operator.replace(/ #\d+/g, '').replace(/(^|[ (])aten::/g, '$1');
const percent = part => `${(100 * part).toFixed(1)} %`;
const time = us => (us < 1e4 ? `${us.toFixed(1)} us` : `${(us / 1e3).toFixed(1)} ms`);
const inBytes = n => (n < 1e4 ? `${n} B` : n < 1e7 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);
const counted = (n, name) => `${n} ${name}${n === 1 ? '' : 's'}`;
const count = n => (n < 1e6 ? `${n}` : n < 1e9 ? `${(n / 1e6).toFixed(1)} million` : `${(n / 1e9).toFixed(2)} billion`);
