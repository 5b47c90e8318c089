// Capacity: goodput and attainment by session rate, the fitted curve, the knee and its interval.
const COLOURS = 12;
const data = JSON.parse(document.getElementById('data').textContent);

function load(data) {
  const arms = data.arms.filter(a => a.runs.length);
  const look = a => 'c' + data.arms.indexOf(a) % COLOURS;
  const slo = percent(data.target);
  new Figure('load', {
    title: 'Load',
    series: data.arms.map(a => ({name: a.name, label: a.name})),
    choices: [{name: 'what', label: 'what', values: [['goodput', 'goodput'], ['attainment', 'inside the objectives']]}],
    height: w => Math.round(Math.min(480, Math.max(300, w * 0.45))),
    draw(fig) {
      const share = fig.chosen.what === 'attainment', shown = arms.filter(a => fig.on(a.name));
      if (!shown.length) return fig.empty('nothing to show: no run, or no arm');
      const [low, high] = extent(shown.flatMap(a => [...a.runs.map(p => p.rate), a.rate, a.low, a.high].filter(v => v !== null)));
      const [, most] = extent(shown.flatMap(a => [...a.runs, ...a.fit].map(p => p[fig.chosen.what])));
      const ys = share ? linear(0, 1, percent) : linear(0, most * 1.08 || 1, plain);
      const area = fig.axes(logarithmic(low / 1.15, high * 1.15, plain), ys,
        {xLabel: 'sessions a second; dashed: largest rate at ' + slo + ' inside; band: 95% interval',
          yLabel: share ? 'requests inside all objectives' : 'requests a second inside all objectives'});
      if (share) fig.level(area.y(data.target), area, 'target ' + slo);
      for (const a of shown) knee(fig, area, a);
      for (const a of shown) points(fig, area, a, fig.chosen.what, share ? percent : plain);
      const spoilt = shown.some(a => a.runs.some(p => p.invalid.length));
      fig.note('A dot is a run, a line the logistic curve through all of them.' + (spoilt ? ' Hollow dots broke a trust rule and are not used.' : ''));
    },
    csv() {
      const out = [['arm', 'what', 'sessions_per_second', 'attainment', 'goodput_requests_per_second', 'broken_rules']];
      for (const a of data.arms) {
        for (const p of a.runs) out.push([a.name, 'run', p.rate, p.attainment, p.goodput, p.invalid.join(' ')]);
        for (const p of a.fit) out.push([a.name, 'curve', p.rate, p.attainment, p.goodput, '']);
        for (const end of ['rate', 'low', 'high']) out.push([a.name, 'capacity_' + end, a[end], null, null, '']);
      }
      return out;
    },
  });

  function knee(fig, area, a) {
    if (a.rate === null) return;
    const from = a.low === null ? area.left : area.x(a.low), to = a.high === null ? area.right : area.x(a.high);
    if (a.low !== null || a.high !== null)
      fig.svg.append(draw('rect', {x: from, width: Math.max(1, to - from), y: area.top, height: area.bottom - area.top, class: 'band ' + look(a)}));
    fig.svg.append(draw('line', {x1: area.x(a.rate), x2: area.x(a.rate), y1: area.top, y2: area.bottom, class: 'step ' + look(a)}));
    const bound = v => v === null ? '–' : plain(v);
    fig.hit(area.x(a.rate), area.top + 4, a.name, `${plain(a.rate)} [${bound(a.low)}, ${bound(a.high)}] sessions/s`, `${slo} inside the objectives`);
  }

  function points(fig, area, a, what, show) {
    fig.path(a.fit.map(p => [area.x(p.rate), area.y(p[what])]), look(a));
    for (const p of a.runs) {
      const x = area.x(p.rate), y = area.y(p[what]);
      fig.svg.append(draw('circle', {cx: x, cy: y, r: 4.5, class: (p.invalid.length ? 'spoilt ' : 'dot ') + look(a)}));
      fig.hit(x, y, a.name, `${plain(p.rate)} sessions/s: ${show(p[what])}`, `${percent(p.attainment)} inside`, ...(p.invalid.length ? ['not used: ' + p.invalid.join(', ')] : []));
    }
  }
}

load(data);
document.documentElement.dataset.ready = 'true';
