/**
 * @file Symbolic sizes: the exporter writes them as constructor calls, `Mul(Integer(2), Symbol('s77', positive=True))`;
 * here they become the text of an expression, `2*s77`. Text is parsed, never evaluated.
 */

type Term =
  | { readonly head: string; readonly args: readonly Term[] }
  | { readonly word: string }
  | { readonly text: string };

const longest = 20_000;
const deepest = 100;

/** The text of an expression as graphs have it; what cannot be read stays as it is. @example formatSymbolic("Symbol('s0')") // 's0' */
export function formatSymbolic(source: string): string {
  if (source.length > longest) return 'unknown()';
  try {
    return print(new TermParser(source).whole(), 0);
  } catch (error) {
    if (error instanceof SyntaxError) return source.trim() === '' ? 'unknown()' : source;
    throw error;
  }
}

class TermParser {
  private readonly tokens: readonly string[];
  private at = 0;
  private depth = 0;

  constructor(source: string) {
    this.tokens = source.match(/'[^']*'|"[^"]*"|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|-?[A-Za-z_]\w*|[(),=]|\S/g) ?? [];
  }

  whole(): Term {
    const term = this.term();
    if (this.at < this.tokens.length) throw new SyntaxError('more after the end');
    return term;
  }

  private term(): Term {
    if (++this.depth > deepest) throw new SyntaxError('too deep');
    const token = this.tokens[this.at++];
    if (token === undefined) throw new SyntaxError('ends early');
    let result: Term;
    if (/^['"]/.test(token)) result = { text: token.slice(1, -1) };
    else if (!/^-?\w/.test(token)) throw new SyntaxError(token);
    else if (this.tokens[this.at] === '(') {
      this.at++;
      result = { head: token, args: this.args() };
    } else result = { word: token };
    this.depth--;
    return result;
  }

  /** Arguments up to the closing parenthesis; `positive=True` and its like say nothing that is needed here. */
  private args(): Term[] {
    const args: Term[] = [];
    while (this.tokens[this.at] !== ')') {
      const term = this.term();
      if (this.tokens[this.at] === '=') {
        this.at++;
        this.term();
      } else args.push(term);
      if (this.tokens[this.at] === ',') this.at++;
      else if (this.tokens[this.at] !== ')') throw new SyntaxError('no comma');
    }
    this.at++;
    return args;
  }
}

const SUM = 1;
const DIVISION = 2; // and remainders: put in parentheses inside products, where their order would matter
const PRODUCT = 3;
const POWER = 4;

/** Prints a term; `level` is how tightly its surroundings bind. */
function print(term: Term, level: number): string {
  if ('text' in term) return term.text;
  if ('word' in term) return term.word;
  const { head, args } = term;
  const [first, second] = args;
  switch (head) {
    case 'Symbol':
    case 'Integer':
    case 'Float':
      return first === undefined ? head : wrapped(print(first, 0), 0, level);
    case 'Rational':
      return first === undefined || second === undefined
        ? head
        : wrapped(`${print(first, PRODUCT)}/${print(second, POWER)}`, DIVISION, level);
    case 'Add':
      return wrapped(
        args
          .map((arg) => print(arg, SUM))
          .join(' + ')
          .replaceAll('+ -', '- '),
        SUM,
        level,
      );
    case 'Mul':
      return wrapped(
        args
          .map((arg) => print(arg, PRODUCT))
          .join('*')
          .replace(/^\(-1\)\*/, '-'),
        PRODUCT,
        level,
      );
    case 'Pow':
    case 'PowByNatural':
      return first === undefined || second === undefined
        ? head
        : wrapped(`${print(first, POWER + 1)}**${print(second, POWER + 1)}`, POWER, level);
    case 'FloorDiv':
      return first === undefined || second === undefined
        ? head
        : wrapped(`${print(first, POWER)}//${print(second, POWER)}`, DIVISION, level);
    case 'Mod':
    case 'PythonMod':
      return first === undefined || second === undefined
        ? head
        : wrapped(`${print(first, POWER)} % ${print(second, POWER)}`, DIVISION, level);
    default:
      return `${head}(${args.map((arg) => print(arg, 0)).join(', ')})`;
  }
}

/** Puts parentheses around what binds less tightly than its surroundings; negative numbers bind like sums. */
function wrapped(text: string, own: number, level: number): string {
  const binds = own === 0 ? (text.startsWith('-') ? SUM : POWER + 1) : own;
  return level > binds ? `(${text})` : text;
}
