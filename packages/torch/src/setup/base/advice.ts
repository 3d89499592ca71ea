/** @file The command that brings a missing part, in the words of the machine's own package manager. */
import { which } from './toolchain.ts';

export type Part = 'python' | 'pip' | 'compiler' | 'cmake' | 'builder' | 'npm';

type Manager = 'apt-get' | 'dnf' | 'yum' | 'apk' | 'pacman' | 'zypper' | 'brew';

const INSTALL: Readonly<Record<Manager, string>> = {
  'apt-get': 'sudo apt-get install -y',
  dnf: 'sudo dnf install -y',
  yum: 'sudo yum install -y',
  apk: 'sudo apk add',
  pacman: 'sudo pacman -S --noconfirm',
  zypper: 'sudo zypper install -y',
  brew: 'brew install',
};

/** Package names where they differ from the first one, which is Debian's. */
const PACKAGES: Readonly<Record<Part, Readonly<Partial<Record<Manager, string>> & { 'apt-get': string }>>> = {
  python: { 'apt-get': 'python3 python3-pip', pacman: 'python python-pip', brew: 'python3' },
  pip: { 'apt-get': 'python3-pip', apk: 'py3-pip', pacman: 'python-pip', brew: 'python3' },
  compiler: {
    'apt-get': 'g++',
    dnf: 'gcc-c++',
    yum: 'gcc-c++',
    zypper: 'gcc-c++',
    apk: 'build-base',
    pacman: 'gcc',
    brew: 'gcc',
  },
  cmake: { 'apt-get': 'cmake' },
  builder: { 'apt-get': 'ninja-build', apk: 'ninja', pacman: 'ninja', zypper: 'ninja', brew: 'ninja' },
  npm: { 'apt-get': 'npm', brew: 'node' },
};

/** `sudo apt-get install -y g++`, or the same for another manager; Debian's words where none is found. */
export function installCommand(part: Part, env: NodeJS.ProcessEnv = process.env): string {
  const managers = Object.keys(INSTALL) as Manager[];
  const manager = managers.find((name) => which(name, env) !== null) ?? 'apt-get';
  const root = process.getuid?.() === 0;
  const prefix = root ? INSTALL[manager].replace(/^sudo /, '') : INSTALL[manager];
  return `${prefix} ${PACKAGES[part][manager] ?? PACKAGES[part]['apt-get']}`;
}
