// What users feel: percentile curves, hit buckets, served hits, paired differences.
const FEW = 5;  // arms up to which each is named beside a plot
const armSeries = data => data.arms.map(name => ({name, label: name}));
const numeric = x => typeof x === 'number' ? x : null;

function curves(data) {
  const byMetric = Object.fromEntries(data.curves.map(c => [c.metric, c]));
  new Figure('curves', {
    title: 'Percentiles',
    series: armSeries(data),
    choices: [{name: 'metric', label: 'metric', values: data.curves.map(c => [c.metric, c.label])}],
    height: w => Math.round(Math.min(460, Math.max(300, w * 0.42))),
    draw(fig) {
      const curve = byMetric[fig.chosen.metric];
      const arms = data.arms.filter(a => fig.on(a) && curve.arms[a].q.length);
      if (!arms.length) return fig.empty('nothing to show: no arm, or no values');
      const values = arms.flatMap(a => [...curve.arms[a].value, ...curve.arms[a].band.flat().filter((_, i) => i % 3)]);
      const [low, high] = extent([...values.filter(v => v > 0), ...(curve.slo ? [curve.slo] : [])]);
      const rows = Math.max(...arms.map(a => curve.arms[a].rows));
      const area = fig.axes(percentiles(rows), logarithmic(low / 1.1, high * 1.15),
        {xLabel: 'percentile of all planned requests; bands: 95% by session', yLabel: curve.label});
      for (const a of arms) {
        const band = curve.arms[a].band;
        fig.area(band.map(([q, , up]) => [area.x(q), area.y(up)]), band.map(([q, down]) => [area.x(q), area.y(down)]), style(data, a));
      }
      for (const a of arms) one(fig, area, curve, a, style(data, a));
      if (curve.slo) {
        fig.level(area.y(curve.slo), area, `SLO ${seconds(curve.slo)}`);
        arms.forEach(a => inside(fig, area, curve, a));
      }
      fig.note(notes(curve, data.arms));
    },
    csv(fig) {
      const curve = byMetric[fig.chosen.metric];
      const out = [['arm', 'what', 'q', 'seconds', 'low_seconds', 'high_seconds']];
      for (const a of data.arms) {
        curve.arms[a].q.forEach((q, i) => out.push([a, 'observed', q, curve.arms[a].value[i], null, null]));
        curve.arms[a].band.forEach(([q, low, high]) => out.push([a, 'interval', q, null, low, high]));
      }
      return out;
    },
  });

  function one(fig, area, curve, arm, look) {
    const {q, value, rows, failed} = curve.arms[arm];
    const points = q.map((x, i) => [area.x(x), area.y(value[i])]);
    if (points.length && !failed) points.push([area.right, points.at(-1)[1]]);
    fig.path(points, look, true);
    q.forEach((x, i) => fig.hit(area.x(x), area.y(value[i]), arm, `P${Number((100 * x).toPrecision(5))}: ${seconds(value[i])}`));
    if (failed && points.length) {
      const [x, y] = points.at(-1);
      fig.svg.append(draw('path', {d: `M${x} ${y}V${area.top}`, class: 'line failed ' + look}));
      fig.hit(x, area.top + 6, arm, `${failed} of ${rows} failed: infinitely slow`);
    }
  }

  // Where an arm leaves the objective: a step down to the axis, with the share of requests that is inside.
  function inside(fig, area, curve, arm) {
    const share = curve.arms[arm].inside;
    if (share === null || share >= 1 || area.x(share) >= area.right) return;
    const x = area.x(share), y = area.y(curve.slo), look = style(data, arm);
    fig.svg.append(draw('line', {x1: x, x2: x, y1: y, y2: area.bottom, class: 'step ' + look}),
      draw('circle', {cx: x, cy: y, r: 4, class: 'dot ' + look}));
    if (data.arms.length <= FEW) fig.svg.append(draw('text', {x: x + 6, y: area.bottom - 6 - 15 * data.arms.indexOf(arm), class: 'step-text halo ' + look}, `${percent(share)} inside`));
    fig.hit(x, y, arm, `${percent(share)} of all requests within ${seconds(curve.slo)}`);
  }

  function notes(curve, arms) {
    const said = arms.filter(a => curve.arms[a].blank).map(a => `${a}: ${curve.arms[a].blank}`);
    const lost = arms.filter(a => curve.arms[a].failed && !curve.arms[a].blank).map(a => `${a}: ${curve.arms[a].failed} failed, its line ends upwards`);
    const within = curve.slo && arms.length > FEW ? ['each step has its share, shown on hover'] : curve.slo ? arms.filter(a => curve.arms[a].inside !== null).map(a => `${a} ${percent(curve.arms[a].inside)}`) : [];
    return [...(within.length ? [`within ${seconds(curve.slo)}: ${within.join(', ')}`] : []), ...said, ...lost].join('; ');
  }
}

const COLOURS = 12;
// a colour, and dashes that differ where colours come again
function style(data, arm) {
  const i = data.arms.indexOf(arm);
  return `c${i % COLOURS} d${(i + Math.floor(i / COLOURS)) % 4}`;
}

function buckets(data) {
  const labels = {'ttft_sched.p50': 'first token, P50', 'ttft_sched.p90': 'first token, P90',
    'second_sched.p50': 'second token, P50', 'slo_attainment.share': 'inside the SLO'};
  const b = data.buckets;
  new Figure('buckets', {
    title: 'By planned hit',
    series: armSeries(data),
    choices: [{name: 'metric', label: 'metric', values: Object.entries(labels)}],
    draw(fig) {
      const share = fig.chosen.metric.startsWith('slo'), show = share ? percent : seconds;
      const arms = data.arms.filter(a => fig.on(a));
      const known = arms.flatMap(a => b.figures[fig.chosen.metric][a].filter(Array.isArray).flat().map(numeric));
      if (!known.length) return fig.empty('nothing to show: too few requests in each bucket');
      const [low, high] = extent(known);
      const xs = {at: i => (i + 0.5) / b.names.length, ticks: b.names.map((n, i) => [i, n])};
      const ys = share ? linear(Math.min(low, 0.5), 1, percent) : logarithmic(low / 1.15, high * 1.15);
      const area = fig.axes(xs, ys, {xLabel: 'planned hit, % of the prompt', yLabel: 'from due'});
      arms.forEach((a, k) => b.names.forEach((name, i) => mark(fig, area, a, k, arms.length, i, name, show)));
      if (!share && data.slo.ttft_sched_ms && fig.chosen.metric.startsWith('ttft'))
        fig.level(area.y(data.slo.ttft_sched_ms / 1e3), area, `SLO ${seconds(data.slo.ttft_sched_ms / 1e3)}`);
      fig.note('requests: ' + b.names.map((n, i) => `${n} ${Math.max(...data.arms.map(a => b.requests[a][i]))}`).join(', '));
    },
    csv(fig) {
      const out = [['arm', 'bucket', 'requests', 'metric', 'point', 'low', 'high', 'withheld']];
      for (const [metric, byArm] of Object.entries(b.figures))
        for (const a of data.arms) byArm[a].forEach((f, i) => out.push([a, b.names[i], b.requests[a][i], metric,
          ...(Array.isArray(f) ? [...f, null] : [null, null, null, f])]));
      return out;
    },
  });

  function mark(fig, area, arm, k, arms, i, name, show) {
    const figure = b.figures[fig.chosen.metric][arm][i];
    if (!Array.isArray(figure) || numeric(figure[0]) === null) return;
    const slot = (area.right - area.left) / b.names.length;
    const x = area.x(i) + (k - (arms - 1) / 2) * Math.min(18, slot / (arms + 1));
    const [point, low, high] = figure;
    const top = numeric(high) === null ? area.top : area.y(high), foot = numeric(low) === null ? area.bottom : area.y(low);
    fig.svg.append(draw('line', {x1: x, x2: x, y1: top, y2: foot, class: 'whisker ' + style(data, arm)}),
      draw('circle', {cx: x, cy: area.y(point), r: 4.5, class: 'dot ' + style(data, arm)}));
    const bound = v => v === null ? '–' : v === 'inf' ? 'inf' : show(v);
    fig.hit(x, area.y(point), `${arm}, hit ${name}%`, `${show(point)} [${bound(low)}, ${bound(high)}]`, `${b.requests[arm][i]} requests`);
  }
}

function hits(data) {
  const least = 1e-3, unhit = (hit, size) => Math.max(1 - hit / size, least);
  const total = data.arms.reduce((sum, a) => sum + data.hits[a].id.length, 0);
  new Figure('hits', {
    title: 'Served against planned hits',
    series: armSeries(data),
    draw(fig) {
      if (!total) return fig.empty('no endpoint reports cached tokens');
      const scale = () => logarithmic(least, 1.05, percent);
      const area = fig.axes(scale(), scale(), {xLabel: 'planned share of the prompt that is not hit', yLabel: 'served share not hit'});
      fig.svg.append(draw('line', {x1: area.x(least), y1: area.y(least), x2: area.x(1), y2: area.y(1), class: 'diagonal'}));
      data.arms.forEach((a, i) => fig.on(a) && dots(fig, area, a, 4.6 - i % 3 * 1.3));
      fig.note(tallies());
    },
    csv() {
      const out = [['arm', 'request_id', 'input_tokens', 'cached_tokens_planned', 'cached_tokens']];
      for (const a of data.arms) data.hits[a].id.forEach((id, i) => out.push([a, id, data.hits[a].input[i], data.hits[a].planned[i], data.hits[a].served[i]]));
      return out;
    },
  });

  function dots(fig, area, arm, r) {
    const h = data.hits[arm], group = draw('g', {class: 'dots ' + style(data, arm)});
    h.id.forEach((id, i) => {
      const x = area.x(unhit(h.planned[i], h.input[i])), y = area.y(unhit(h.served[i], h.input[i]));
      group.append(draw('circle', {cx: x.toFixed(1), cy: y.toFixed(1), r}));
      fig.hit(x, y, `${arm} · ${id}`, `planned ${h.planned[i].toLocaleString('en')}, served ${h.served[i].toLocaleString('en')}`, `of ${h.input[i].toLocaleString('en')} tokens`);
    });
    fig.svg.append(group);
  }

  function tallies() {
    const known = data.arms.filter(a => data.hits[a].id.length);
    const exact = known.filter(a => data.hits[a].served.every((s, i) => s === data.hits[a].planned[i]));
    if (exact.length === known.length) return known.length > 1 ? 'every reply hit exactly what was planned, in all arms' : tally(known[0]);
    return known.map(tally).join('; ');
  }

  function tally(arm) {
    const h = data.hits[arm];
    const less = h.served.filter((s, i) => s < h.planned[i]).length, more = h.served.filter((s, i) => s > h.planned[i]).length;
    const shown = h.total > h.id.length ? ` (of ${h.total.toLocaleString('en')})` : '';
    return `${arm}: ${h.id.length - less - more}${shown} as planned, ${less} hit less, ${more} more`;
  }
}

function paired(data) {
  const labels = {ttft_sched: 'TTFT', ttst: '2nd-token gap', itl: 'ITL', max_gap: 'largest gap', e2e: 'E2E', session_completion: 'session'};
  const others = [...new Set(data.paired.map(p => p.arm))];
  const rowsOf = fig => data.paired.filter(p => fig.on(p.arm) && Array.isArray(p.figure) && p.stat === fig.chosen.stat && numeric(p.figure[0]) !== null);
  new Figure('paired', {
    title: others.length ? `Paired differences from ${data.arms[0]}` : 'Paired differences',
    series: others.map(name => ({name, label: name, style: 'c' + data.arms.indexOf(name) % COLOURS})),
    choices: [{name: 'stat', label: 'quantile', values: [['p50', 'P50'], ['p90', 'P90'], ['p99', 'P99']]}],
    height: w => Math.max(Math.round(Math.min(380, Math.max(250, w * 0.5))), Object.keys(labels).length * (13 * others.length + 14) + EDGE.top + EDGE.bottom),
    draw(fig) {
      const rows = rowsOf(fig);
      if (!rows.length) return fig.empty(others.length ? 'nothing to show: withheld' : 'one arm: nothing to compare with');
      const metrics = Object.keys(labels).filter(m => rows.some(p => p.metric === m));
      const [low, high] = extent(rows.flatMap(p => p.figure.map(numeric)).concat(0));
      const xs = signed(Math.min(low * 1.4, -0.003), Math.max(high * 1.4, 0.003), 0.001);
      const ys = {at: i => 1 - (i + 0.5) / metrics.length, ticks: metrics.map((m, i) => [i, labels[m]])};
      const area = fig.axes(xs, ys, {xLabel: 'faster ← difference of the quantiles → slower', left: 92});
      fig.svg.append(draw('line', {x1: area.x(0), x2: area.x(0), y1: area.top, y2: area.bottom, class: 'zero'}));
      for (const p of rows) mark(fig, area, p, metrics.indexOf(p.metric));
    },
    csv: () => [['arm', 'against', 'metric', 'stat', 'point_seconds', 'low_seconds', 'high_seconds', 'withheld'],
      ...data.paired.map(p => [p.arm, p.against, p.metric, p.stat, ...(Array.isArray(p.figure) ? [...p.figure, null] : [null, null, null, p.figure])])],
  });

  function mark(fig, area, p, row) {
    const shown = others.filter(o => fig.on(o));
    const y = area.y(row) + (shown.indexOf(p.arm) - (shown.length - 1) / 2) * 13;
    const [point, low, high] = p.figure;
    const a = numeric(low) === null ? area.left : area.x(low), b = numeric(high) === null ? area.right : area.x(high);
    fig.svg.append(draw('line', {x1: a, x2: b, y1: y, y2: y, class: 'whisker ' + style(data, p.arm)}),
      draw('circle', {cx: area.x(point), cy: y, r: 4.5, class: 'dot ' + style(data, p.arm)}));
    fig.hit(area.x(point), y, `${p.arm} − ${p.against}, ${labels[p.metric]} ${p.stat.toUpperCase()}`, `${seconds(point)} [${seconds(low)}, ${seconds(high)}]`);
  }
}
