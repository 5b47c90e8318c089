// A figure: title, choices, a legend that toggles series, an SVG redrawn at the width there is, hover, CSV.
const EDGE = {left: 58, right: 14, top: 26, bottom: 40};
const tip = document.getElementById('tip');

class Figure {
  constructor(id, options) {
    this.id = id;
    this.options = options;
    this.host = document.getElementById(id);
    this.hidden = new Set();
    this.chosen = {};
    for (const choice of options.choices || []) this.chosen[choice.name] = choice.values[0][0];
    this.build();
    new ResizeObserver(() => this.redraw()).observe(this.host);
    this.redraw();
  }

  build() {
    const download = make('button', {type: 'button', class: 'download', title: 'the data of this plot'}, 'CSV');
    download.addEventListener('click', () => this.save());
    const controls = make('div', {class: 'controls'}, ...(this.options.choices || []).map(c => this.selector(c)), download);
    this.legend = make('div', {class: 'legend'}, ...(this.options.series || []).map((s, i) => this.toggle(s, i)));
    this.canvas = make('div', {class: 'canvas'});
    this.foot = make('p', {class: 'note'});
    this.host.append(make('figcaption', {}, make('h2', {}, this.options.title), controls), this.legend, this.canvas, this.foot);
  }

  selector(choice) {
    const select = make('select', {'aria-label': choice.label});
    for (const [value, label] of choice.values) select.append(make('option', {value}, label));
    select.addEventListener('change', () => { this.chosen[choice.name] = select.value; this.redraw(true); });
    choice.element = select;
    return select;
  }

  toggle(series, number) {
    const key = make('span', {class: 'key ' + (series.style || 'c' + number % 12)});
    const button = make('button', {type: 'button', 'aria-pressed': 'true'}, key, series.label);
    button.addEventListener('click', () => {
      const off = this.hidden.delete(series.name) ? false : !!this.hidden.add(series.name);
      button.setAttribute('aria-pressed', String(!off));
      this.redraw(true);
    });
    return button;
  }

  on(name) { return !this.hidden.has(name); }

  redraw(force = false) {
    const width = Math.floor(this.canvas.clientWidth);
    if (!width || (width === this.width && !force)) return;
    this.width = width;
    this.hits = [];
    this.height = this.options.height ? this.options.height(width, this) : Math.round(Math.min(380, Math.max(250, width * 0.5)));
    const label = this.options.title;
    this.svg = draw('svg', {width, height: this.height, viewBox: `0 0 ${width} ${this.height}`, role: 'img', 'aria-label': label});
    this.foot.textContent = '';
    this.options.draw(this);
    this.ring = draw('circle', {r: 5, class: 'ring', visibility: 'hidden'});
    this.svg.append(this.ring);
    this.svg.addEventListener('pointermove', event => this.hover(event));
    this.svg.addEventListener('pointerleave', () => this.leave());
    this.canvas.replaceChildren(this.svg);
  }

  note(text) { this.foot.textContent = text; }

  empty(text) {
    this.svg.append(draw('text', {x: this.width / 2, y: this.height / 2, class: 'empty', 'text-anchor': 'middle'}, text));
  }

  // The area between the axes in pixels, with x and y as functions of values.
  axes(xs, ys, {xLabel = '', yLabel = '', top = EDGE.top, bottom = this.height - EDGE.bottom, left = EDGE.left, last = true} = {}) {
    const right = this.width - EDGE.right;
    const x = v => left + (right - left) * Math.min(Math.max(xs.at(v), -0.02), 1.02);
    const y = v => bottom - (bottom - top) * Math.min(Math.max(ys.at(v), -0.02), 1.02);
    const grid = draw('g', {class: 'grid'});
    let free = Infinity;
    for (const [v, text] of [...ys.ticks].sort((a, b) => y(b[0]) - y(a[0]))) {
      grid.append(draw('line', {x1: left, x2: right, y1: y(v), y2: y(v)}));
      if (free - y(v) < 13) continue;
      free = y(v);
      grid.append(draw('text', {x: left - 7, y: y(v) + 4, 'text-anchor': 'end'}, text));
    }
    let taken = -Infinity;
    for (const [v, text] of [...xs.ticks].sort((a, b) => a[0] - b[0])) {
      grid.append(draw('line', {x1: x(v), x2: x(v), y1: top, y2: bottom}));
      const half = text.length * 3.4;
      const middle = Math.min(x(v), this.width - half - 1);
      if (!last || middle - half < taken + 6) continue;
      taken = middle + half;
      grid.append(draw('text', {x: middle, y: bottom + 16, 'text-anchor': 'middle'}, text));
    }
    const said = this.width < 480 ? xLabel.split(';')[0] : xLabel;
    if (last) grid.append(draw('text', {x: this.width / 2, y: bottom + 34, 'text-anchor': 'middle', class: 'axis'}, said));
    if (yLabel) grid.append(draw('text', {x: 0, y: top - 11, class: 'axis'}, yLabel));
    this.svg.append(grid);
    return {x, y, left, right, top, bottom};
  }

  // A line through [x, y] pixel points; null breaks it.
  path(points, style, stepped = false) {
    let d = '', down = false, before = 0;
    for (const point of points) {
      if (point === null) { down = false; continue; }
      const [px, py] = point.map(v => v.toFixed(1));
      d += !down ? `M${px} ${py}` : stepped ? `H${px}V${py}` : `L${px} ${py}`;
      down = true;
      before = px;
    }
    this.svg.append(draw('path', {d, class: 'line ' + style}));
  }

  area(upper, lower, style) {
    if (upper.length < 2) return;
    const text = points => points.map(p => p.map(v => v.toFixed(1)).join(' ')).join('L');
    this.svg.append(draw('path', {d: `M${text(upper)}L${text([...lower].reverse())}Z`, class: 'band ' + style}));
  }

  level(y, area, text) {
    if (y < area.top || y > area.bottom) return;
    this.svg.append(draw('line', {x1: area.left, x2: area.right, y1: y, y2: y, class: 'slo'}),
      draw('text', {x: area.right - 4, y: y - 5, class: 'slo-text halo', 'text-anchor': 'end'}, text));
  }

  hit(x, y, ...lines) { this.hits.push([x, y, lines]); }

  hover(event) {
    const box = this.svg.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, nearest = 40 ** 2;
    for (const one of this.hits) {
      const d = (one[0] - px) ** 2 + (one[1] - py) ** 2;
      if (d < nearest) { nearest = d; best = one; }
    }
    if (!best) return this.leave();
    fill(this.ring, {cx: best[0], cy: best[1], visibility: 'visible'}, []);
    tip.replaceChildren(...best[2].map((line, i) => make(i ? 'div' : 'b', {}, line)));
    tip.hidden = false;
    const left = Math.min(box.left + best[0] + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = box.top + best[1] - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, left) + 'px';
    tip.style.top = (above > 4 ? above : box.top + best[1] + 16) + 'px';
  }

  leave() {
    tip.hidden = true;
    if (this.ring) this.ring.setAttribute('visibility', 'hidden');
  }

  save() {
    const rows = this.options.csv(this);
    const cell = v => v === null || v === undefined ? '' : /[",\n\r]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : String(v);
    // a text that begins like a formula gets an apostrophe: a spreadsheet must not run what a server wrote
    const safe = v => typeof v === 'string' && /^[=+\-@\t]/.test(v) ? "'" + v : v;
    const text = rows.map(row => row.map(v => cell(safe(v))).join(',')).join('\n') + '\n';
    const link = make('a', {download: `${this.id}.csv`, href: URL.createObjectURL(new Blob([text], {type: 'text/csv'}))});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}
