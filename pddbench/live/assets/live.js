'use strict';
// Draws /state.json once a second. Text goes in as text, never as markup.
const byId = id => document.getElementById(id);
const KEPT = 240;
const history = new Map();
let misses = 0;

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function seconds(v) {
  if (v === null || v === undefined) return '–';
  if (v === 'inf') return 'inf';
  return v < 0.1 ? `${Math.round(v * 1e3)} ms` : `${v.toFixed(v < 10 ? 2 : 1)} s`;
}

function clock(v) {
  if (v === null) return '–';
  const s = Math.round(v), h = Math.floor(s / 3600), m = Math.floor(s % 3600 / 60), two = n => String(n).padStart(2, '0');
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

function facts(style, pairs) {
  return make('dl', {class: style}, ...pairs.map(([name, value, kind]) => make('div', {}, make('dt', {}, name), make('dd', kind ? {class: kind} : {}, value))));
}

// TTFT P50 so far, one point a second, for the run that is on.
function line(points) {
  const known = points.filter(v => typeof v === 'number');
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', `0 0 ${KEPT} 40`);
  svg.setAttribute('preserveAspectRatio', 'none');
  if (known.length < 2) return svg;
  const low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  const step = KEPT / Math.max(points.length - 1, 1);
  path.setAttribute('d', points.map((v, i) => typeof v === 'number' ? `${i * step},${38 - 36 * (v - low) / span}` : null).filter(Boolean).map((p, i) => (i ? 'L' : 'M') + p).join(''));
  svg.append(path);
  return svg;
}

function card(run, on) {
  const waiting = run.state === 'waiting', ended = run.done + run.not_sent;
  const bar = make('div');
  bar.style.width = `${100 * ended / Math.max(run.planned, 1)}%`;
  const key = `${run.arm}.${run.repeat}`;
  const points = history.get(key) || [];
  if (on && run.ttft_n) { points.push(run.ttft_s.p50); history.set(key, points.slice(-KEPT)); }
  const title = make('h2', {}, make('span', {class: `lamp ${waiting ? '' : run.health}`, title: run.health_why}), run.arm,
    make('small', {}, `repeat ${run.repeat} · ${run.state}`));
  if (waiting) return make('article', {class: 'waiting'}, title);
  const out = make('article', on ? {class: 'on'} : {}, title, make('div', {class: 'bar'}, bar),
    facts('big', [['TTFT P50', seconds(run.ttft_s.p50)], ['P90', seconds(run.ttft_s.p90)], ['P99', seconds(run.ttft_s.p99)]]),
    facts('', [['done', `${run.done.toLocaleString('en')} / ${run.planned.toLocaleString('en')}`], ['in flight', String(run.in_flight)],
      ['rate', run.rate_per_s === null ? '–' : `${run.rate_per_s.toFixed(1)}/s`], ['failed', String(run.failed), run.failed ? 'failed' : ''],
      ['waiting most', seconds(run.waiting_s)], ['our CPU', run.cpu_share === null ? '–' : `${Math.round(100 * run.cpu_share)}%`]]));
  if (on) out.append(make('p', {class: 'why'}, 'TTFT P50 so far, over the last minutes'), line(points));
  const waited = run.waited_share === null ? '' : `; without a core ${Math.round(100 * run.waited_share)}% of the time`;
  out.append(make('p', {class: 'why'}, `own health: ${run.health_why}${waited}`));
  return out;
}

function show(state) {
  document.title = `${state.name}: live`;
  byId('name').textContent = state.name;
  const speed = state.speed !== 1 ? ` · TTFT in experiment time (speed ${state.speed})` : '';
  byId('state').textContent = `${state.number} of ${state.runs.length} runs · ${clock(state.elapsed_s)} gone` + (state.left_s === null ? '' : ` · about ${clock(state.left_s)} left`) + speed;
  byId('state').className = '';
  const share = state.runs.reduce((sum, run) => sum + (run.state === 'over' ? 1 : (run.done + run.not_sent) / Math.max(run.planned, 1)), 0) / state.runs.length;
  byId('bar').style.width = `${100 * share}%`;
  byId('runs').replaceChildren(...state.runs.map((run, i) => card(run, i + 1 === state.number && run.state !== 'over')));
  document.documentElement.dataset.ready = 'true';
}

async function tick() {
  try {
    const answer = await fetch('/state.json', {cache: 'no-store'});
    show(await answer.json());
    misses = 0;
  } catch {
    misses += 1;
    if (misses > 2) {
      byId('state').textContent = 'no answer any more: the run is over (its report.html lies in the run folder), or it was killed';
      byId('state').className = 'bad';
    }
  }
  setTimeout(tick, misses > 2 ? 5000 : 1000);
}
tick();
