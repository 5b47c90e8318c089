// The plots of a run.
const data = JSON.parse(document.getElementById('data').textContent);
const alone = data.arms.length < 2;
if (alone) document.getElementById('paired').remove();
for (const plot of [curves, buckets, hits, lanes, gaps, ...(alone ? [] : [paired]), timeline]) plot(data);
document.documentElement.dataset.ready = 'true';
