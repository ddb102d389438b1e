// Durations and sizes as a settings file has them: 7d, 30s, 64KiB.

const DURATIONS = [["d", 86400], ["h", 3600], ["m", 60]];
const SIZES = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

const whole = (units, value) => units.find(([, size]) => value >= size && value % size === 0);

function spelled(units, smallest, value) {
  const [unit, size] = whole(units, value) ?? [smallest, 1];
  return `${value / size}${unit}`;
}

export const duration = (value) => (value > 0 && value < 1 ? `${Math.round(value * 1000)}ms` : spelled(DURATIONS, "s", value));
export const size = (value) => spelled(SIZES, "B", value);
