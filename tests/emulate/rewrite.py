#!/usr/bin/env python3
"""Reads preprocessed CUDA C++ (g++ -E), writes C++ for the emulator: inline asm becomes calls of emulator.h, `__shared__`
variables come from the block's memory, `<<<>>>` becomes emu::launch_plain. EMU_BACK, EMU_PER_SEGMENT and EMU_BUDGET get
their places in chunk_host.cuh."""
import re
import sys


def skip_string(s, i):
    q = s[i]
    i += 1
    while s[i] != q:
        i += 2 if s[i] == '\\' else 1
    return i + 1


def match(s, i, close={'(': ')', '[': ']', '{': '}'}):
    """Index after the bracket that closes s[i]."""
    stack = []
    while True:
        c = s[i]
        if c in '"\'':
            # digit separators are not used in these sources
            i = skip_string(s, i)
            continue
        if c in '([{':
            stack.append(close[c])
        elif c in ')]}':
            if stack.pop() != c:
                raise SyntaxError('brackets near ' + s[max(0, i - 80):i + 20])
            if not stack:
                return i + 1
        i += 1


def split_top(s, separator):
    parts, depth, i, start = [], 0, 0, 0
    while i < len(s):
        c = s[i]
        if c in '"\'':
            i = skip_string(s, i)
            continue
        if c in '([{':
            depth += 1
        elif c in ')]}':
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(s[start:i])
            start = i + 1
        i += 1
    parts.append(s[start:])
    return parts


def strings(s):
    return ''.join(bytes(m, 'utf8').decode('unicode_escape') for m in re.findall(r'"((?:[^"\\]|\\.)*)"', s))


def drop_markers(s):
    return re.sub(r'^\s*#.*$', '', s, flags=re.M)


class Bad(Exception):
    pass


TYPES = {'b8': 'uint8_t', 'u8': 'uint8_t', 's8': 'int8_t', 'b16': 'uint16_t', 'u16': 'uint16_t', 's16': 'int16_t',
         'b32': 'uint32_t', 'u32': 'uint32_t', 's32': 'int32_t', 'f32': 'float', 'b64': 'uint64_t', 'u64': 'uint64_t',
         's64': 'int64_t', 'f64': 'double'}


def translate(op, args, pred):
    """One instruction; args: list of strings or lists of strings. Returns C++."""
    w = op.split('.')

    def u32(x):
        return '(uint32_t)(%s)' % x

    def flat(x):
        return x if isinstance(x, list) else [x]

    def addr(x):
        return 'emu::address(%s)' % x if not isinstance(x, tuple) else '(emu::address(%s) + (%s))' % x

    def code():
        if op.startswith('mma.sync'):
            shape = next(x for x in w if re.match(r'm\d+n\d+k\d+$', x))
            k = int(shape.split('k')[1])
            if not shape.startswith('m16n8k'):
                raise Bad(op)
            kind = w[w.index('col') + 2]
            if kind not in ('f16', 'bf16', 'tf32') or w[w.index('col') + 1] != 'f32' or w[-1] != 'f32':
                raise Bad(op)
            if not ((kind == 'tf32' and k in (4, 8)) or (kind != 'tf32' and k in (8, 16))):
                raise Bad(op)
            d, a, b, c = map(flat, args)
            return 'emu::mma<%d, emu::%s>(%s, {%s}, {%s}, %s)' % (k, kind, ', '.join(d), ', '.join(map(u32, a)),
                                                                 ', '.join(map(u32, b)), ', '.join(c))
        if op.startswith('wgmma.mma_async'):
            n = int(re.search(r'm64n(\d+)k16', op).group(1))
            if w[-1] not in ('f16', 'bf16') or w[-3] != 'f32':
                raise Bad(op)
            d, rest = args[0], args[2:]
            registers = isinstance(args[1], list)
            right, rest = rest[0], rest[1:]
            if len(d) != n // 2:
                raise Bad(op + ': number of results')
            add, sa, sb = rest[:3]
            turns = rest[3:]
            lines = ['emu::wgmma_arg emu_w{}']
            lines += ['emu_w.d[%d] = &(%s)' % (i, x) for i, x in enumerate(d)]
            lines += ['emu_w.registers = %d' % registers, 'emu_w.n = %d' % n, 'emu_w.bf = %d' % (w[-1] == 'bf16'),
                      'emu_w.right = (uint64_t)(%s)' % right, 'emu_w.add = (%s)' % add,
                      'emu_w.scale_a = (%s)' % sa, 'emu_w.scale_b = (%s)' % sb]
            if registers:
                lines += ['emu_w.a[%d] = %s' % (i, u32(x)) for i, x in enumerate(args[1])]
                lines += ['emu_w.turn_right = (%s)' % (turns[0] if turns else '0')]
            else:
                lines += ['emu_w.left = (uint64_t)(%s)' % args[1],
                          'emu_w.turn_left = (%s)' % (turns[0] if turns else '0'),
                          'emu_w.turn_right = (%s)' % (turns[1] if turns else '0')]
            return '{ ' + '; '.join(lines) + '; emu::wgmma(emu_w); }'
        if op.startswith('wgmma.fence'):
            return '__syncwarp()'
        if op.startswith('wgmma.commit_group'):
            return 'emu::wgmma_commit()'
        if op.startswith('wgmma.wait_group'):
            return 'emu::wgmma_wait(%s)' % args[0]
        if w[0] == 'ldmatrix':
            n = int(next(x for x in w if re.match(r'x\d$', x))[1])
            return 'emu::ldmatrix<%d, %d>({{%s}}, (uint32_t)%s)' % (n, 'trans' in w, ', '.join('&(%s)' % x for x in flat(args[0])),
                                                                  addr(args[1]))
        if w[0] == 'stmatrix':
            n = int(next(x for x in w if re.match(r'x\d$', x))[1])
            return 'emu::stmatrix<%d, %d>((uint32_t)%s, {{%s}})' % (n, 'trans' in w, addr(args[0]), ', '.join(map(u32, flat(args[1]))))
        if w[0] == 'movmatrix':
            return 'emu::movmatrix(%s, %s)' % (args[0], args[1])
        if op.startswith('cp.async.bulk'):
            if 'tensor' in w:
                raise Bad(op)
            if op.startswith('cp.async.bulk.commit_group'):
                return 'emu::store_commit()'
            if op.startswith('cp.async.bulk.wait_group'):
                return 'emu::store_wait(%s)' % args[0]
            if op.startswith('cp.async.bulk.prefetch'):
                return '(void)0'
            if re.match(r'cp\.async\.bulk\.shared(::\w+)?\.global', op):
                return 'emu::copy_bulk((uint32_t)%s, (const void *)%s, %s, (uint32_t)%s)' % (addr(args[0]), addr(args[1]), args[2], addr(args[3]))
            if re.match(r'cp\.async\.bulk\.global\.shared', op):
                return 'emu::store_bulk((void *)%s, (uint32_t)%s, %s)' % (addr(args[0]), addr(args[1]), args[2])
            raise Bad(op)
        if op.startswith('cp.async.mbarrier.arrive'):
            return 'emu::copy_arrive((uint32_t)%s, %d)' % (addr(args[0]), 'noinc' not in w)
        if op.startswith('cp.async.commit_group'):
            return 'emu::copy_commit()'
        if op.startswith('cp.async.wait_group'):
            return 'emu::copy_wait(%s)' % args[0]
        if op.startswith('cp.async.wait_all'):
            return 'emu::copy_wait(-1)'
        if op.startswith('cp.async.c'):
            sizes = args[2:-1] if 'cache_hint' in op else args[2:]
            valid = sizes[-1]
            return 'emu::copy_async((uint32_t)%s, (const void *)%s, %s, (uint32_t)(%s))' % (addr(args[0]), addr(args[1]), args[2], valid)
        if w[0] == 'mbarrier':
            at = None
            if w[1] == 'init':
                return 'emu::mbarrier_init((uint32_t)%s, %s)' % (addr(args[0]), args[1])
            if w[1] == 'inval':
                return '(void)0'
            if w[1] == 'arrive':
                tx = 'expect_tx' in w
                d, at = args[0], addr(args[1])
                more = args[2] if len(args) > 2 else None
                count, bytes_ = ('1', more) if tx else (more or '1', '0')
                call = 'emu::mbarrier_arrive((uint32_t)%s, %s, %s)' % (at, count, bytes_)
                return call if d == '_' else '%s = %s' % (d, call)
            if w[1] == 'expect_tx':
                return 'emu::mbarrier_expect((uint32_t)%s, %s)' % (addr(args[0]), args[1])
            if w[1] in ('try_wait', 'test_wait') and 'parity' in w:
                return '%s = emu::mbarrier_test((uint32_t)%s, %s, %d)' % (args[0], addr(args[1]), args[2], w[1] == 'try_wait')
            raise Bad(op)
        if w[0] in ('bar', 'barrier') and 'cluster' not in w:
            if 'sync' in w or 'arrive' in w:
                return 'emu::barrier_sync(%s, %s, %s)' % (args[0], args[1] if len(args) > 1 else '-1', 'true' if 'sync' in w else 'false')
            if 'warp' in w:
                return '__syncwarp(%s)' % args[0]
            raise Bad(op)
        if w[0] in ('fence', 'membar', 'prefetch', 'prefetchu', 'applypriority', 'setmaxnreg'):
            return '(void)0'
        if w[0] == 'discard':
            return 'memset((void *)%s, 0xcd, %s)' % (addr(args[0]), args[1])
        if w[0] == 'griddepcontrol':
            return 'emu::grid_wait()' if w[1] == 'wait' else 'emu::grid_release()'
        if w[0] == 'createpolicy':
            return '%s = 0' % args[0]
        if w[0] == 'nanosleep':
            return 'emu::yield("nanosleep")'
        if w[0] in ('ld', 'ldu'):
            t = TYPES[w[-1]]
            return '(emu::before_load(%d, %d), emu::ld<%s, %d>(%s, %s))' % (
                'acquire' in w, 'relaxed' in w or 'volatile' in w, t, any(x.startswith('shared') for x in w), addr(args[1]), ', '.join(flat(args[0])))
        if w[0] == 'st':
            t = TYPES[w[-1]]
            return 'emu::st<%s, %d>(%s, %s)' % (t, any(x.startswith('shared') for x in w), addr(args[0]), ', '.join(flat(args[1])))
        if w[0] == 'red' and 'add' in w:
            return 'emu::red_add<%s, %d>(%s, %s)' % (TYPES[w[-1]], any(x.startswith('shared') for x in w), addr(args[0]), args[1])
        if w[0] == 'rcp':
            x = 'emu::ftz(%s)' % args[1] if 'ftz' in w else args[1]
            return '%s = %s' % (args[0], 'emu::ftz(1.0f / %s)' % x if 'ftz' in w else '1.0f / (%s)' % x)
        if w[0] == 'rsqrt':
            return '%s = 1.0f / sqrtf(%s)' % (args[0], 'emu::ftz(%s)' % args[1] if 'ftz' in w else args[1])
        if w[0] == 'sqrt':
            return '%s = sqrtf(%s)' % (args[0], args[1])
        if w[0] == 'ex2' and w[-1] == 'f32':
            return '%s = %s(exp2f(%s))' % (args[0], 'emu::ftz' if 'ftz' in w else '', args[1])
        if w[0] == 'lg2' and w[-1] == 'f32':
            return '%s = log2f(%s)' % (args[0], args[1])
        if w[0] == 'tanh' and w[-1] == 'f32':
            return '%s = tanhf(%s)' % (args[0], args[1])
        if op == 'fma.rn.bf16x2':
            return '%s = emu::fma_bf16x2(%s, %s, %s)' % tuple(args)
        if op == 'fma.rn.f16x2':
            return '%s = emu::fma_f16x2(%s, %s, %s)' % tuple(args)
        m = re.match(r'(min|max)(\.NaN)?\.(bf16x2|f16x2)$', op)
        if m:
            return '%s = emu::extreme2<emu::%s>(%s, %s, %d, %d)' % (args[0], m.group(3)[:-2], args[1], args[2], m.group(1) == 'max', bool(m.group(2)))
        if op == 'trap':
            return '__trap()'
        if op == 'cvt.rna.tf32.f32':
            return '{ const uint32_t emu_t = emu::cvt_tf32_rna(%s); emu::put<uint32_t>(%s, emu_t); }' % (args[1], args[0])
        if op == 'cvt.rn.bf16x2.f32':
            return '%s = (uint32_t)emu::float_to_bf16(%s) << 16 | emu::float_to_bf16(%s)' % tuple(args)
        if op == 'cvt.rn.f16x2.f32':
            return '%s = (uint32_t)emu::float_to_half(%s) << 16 | emu::float_to_half(%s)' % tuple(args)
        if w[0] == 'lop3':
            return '%s = emu::lop3(%s, %s, %s, %s)' % tuple(args)
        if w[0] == 'prmt':
            return '%s = __byte_perm(%s, %s, %s)' % tuple(args[:4])
        if w[0] == 'setp':
            c = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>='}[w[1]]
            return '%s = (%s) %s (%s)' % (args[0], args[1], c, args[2])
        if w[0] == 'selp':
            return '%s = (%s) ? (%s) : (%s)' % (args[0], args[3], args[1], args[2])
        if w[0] == 'mov':
            x = args[1]
            if isinstance(x, list) and len(x) == 2:
                return '%s = (uint64_t)(uint32_t)(%s) | (uint64_t)(uint32_t)(%s) << 32' % (args[0], x[0], x[1])
            if x.startswith('SREG_'):
                x = {'SREG_warpid': 'emu::warp_slot()', 'SREG_laneid': '(uint32_t)emu::cur->lane', 'SREG_smid': '(uint32_t)(emu::cur->block - (emu::Block *)0, 0)',
                     'SREG_clock64': '(uint64_t)clock64()', 'SREG_clock': '(uint32_t)clock64()', 'SREG_globaltimer': '(uint64_t)clock64()'}.get(x)
                if x is None:
                    raise Bad(op + ' ' + args[1])
            return '%s = %s' % (args[0], x)
        if w[0] in ('add', 'sub', 'mul') and w[-1] in TYPES and len(w) == 2:
            return '%s = (%s) %s (%s)' % (args[0], args[1], {'add': '+', 'sub': '-', 'mul': '*'}[w[0]], args[2])
        if w[0] == 'fma' and w[-1] == 'f32':
            return '%s = fmaf(%s, %s, %s)' % tuple(args)
        if w[0] == 'and' or w[0] == 'or' or w[0] == 'xor':
            return '%s = (%s) %s (%s)' % (args[0], args[1], {'and': '&', 'or': '|', 'xor': '^'}[w[0]], args[2])
        raise Bad(op)

    c = code()
    if pred:
        return 'if (%s) { %s; }' % (pred, c)
    return c if c.endswith('}') else c + ';'


def operands(text, value):
    """'{%0,%1}, [%2+4], p' -> list."""
    out = []
    for part in split_top(text, ','):
        part = part.strip()
        if part.startswith('{'):
            out.append([value(x.strip()) for x in part[1:part.rindex('}')].split(',')])
        elif part.startswith('['):
            inner = part[1:part.rindex(']')].strip()
            m = re.match(r'(.*?)\s*\+\s*([^+]+)$', inner)
            out.append((value(m.group(1).strip()), value(m.group(2).strip())) if m else value(inner))
        elif part:
            out.append(value(part))
    return out


def rewrite_asm(body, where):
    parts = split_top(drop_markers(body), ':')
    # '::' leaves an empty part, as wanted
    template = strings(parts[0])
    ops = []
    for section in parts[1:3]:
        for item in split_top(section, ','):
            item = item.strip()
            if not item:
                continue
            m = re.match(r'(?:\[\w+\]\s*)?"([^"]*)"\s*(?:"\w*"\s*)*\(', item)
            if not m:
                raise Bad('operand ' + item)
            ops.append((m.group(1), item[item.index('(') + 1:item.rindex(')')]))

    def value(x):
        m = re.match(r'%(\d+)$', x)
        if m:
            return '(%s)' % ops[int(m.group(1))][1]
        if x.startswith('%%'):
            return 'SREG_' + x[2:]
        return x

    text = re.sub(r'//[^\n]*', '', template).strip()
    # one pair of braces around everything is a scope
    if text.startswith('{'):
        text = text[1:text.rindex('}')]
    out = []
    for ins in text.split(';'):
        ins = ins.strip()
        if not ins:
            continue
        m = re.match(r'\.reg\s*\.(\w+)\s+(.*)$', ins, re.S)
        if m:
            t = 'bool' if m.group(1) == 'pred' else TYPES[m.group(1)]
            for name in m.group(2).split(','):
                out.append('%s %s{}; (void)%s;' % (t, name.strip(), name.strip()))
            continue
        pred = None
        m = re.match(r'@(!?)(%?\w+)\s+(.*)$', ins, re.S)
        if m:
            pred, ins = m.group(1) + value(m.group(2)), m.group(3)
        m = re.match(r'([\w.:]+)\s*(.*)$', ins, re.S)
        op, rest = m.group(1), m.group(2)
        text_args = rest.replace('|', ',') if op.startswith('shfl') else rest
        out.append(translate(op, operands(text_args, value), pred))
    return '{ ' + ' '.join(out) + ' }'


def rewrite(s):
    out, i = [], 0
    word = re.compile(r'\basm\b\s*(?:volatile\b|__volatile__\b)?\s*\(')
    while True:
        m = word.search(s, i)
        if not m:
            break
        end = match(s, m.end() - 1)
        body = s[m.end():end - 1]
        after = end
        while s[after] in ' \t\n':
            after += 1
        try:
            new = rewrite_asm(body, m.start())
        except (Bad, KeyError, IndexError, ValueError, StopIteration) as e:
            new = '{ emu::die("asm that is not emulated: %%s", %s); }' % ('"' + re.sub(r'[^\w. :,%\[\]]', ' ', strings(drop_markers(body).split(':')[0]) or str(e))[:150] + '"')
            sys.stderr.write('rewrite: not emulated (%s %s): %s\n' % (type(e).__name__, e, strings(drop_markers(body).split(':')[0])[:120]))
        out.append(s[i:m.start()])
        out.append(new)
        i = after + 1 if s[after] == ';' else end
    out.append(s[i:])
    s = ''.join(out)

    s = re.sub(r'(?<!\()(?<!\( )__noinline__', '__attribute__((noinline))', s)
    # shared memory
    align = r'(?:__attribute__\s*\(\(\s*aligned\s*\(\s*\d+\s*\)\s*\)\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?'
    s = re.sub(r'extern\s+__shared__\s+' + align + r'([\w:<>, ]+?)\s*(\w+)\s*\[\s*\]\s*;',
               r'\1 *const \2 = (\1 *)emu::block_dynamic();', s)

    def fixed(m):
        kind, names = m.group(1).strip(), m.group(2)
        res = []
        for d in split_top(names, ','):
            d = d.strip()
            n = re.match(r'(\w+)((?:\s*\[.*\])*)$', d, re.S)
            name, dims = n.group(1), n.group(2)
            res.append('static char emu_key_%s; using emu_t_%s = %s%s; emu_t_%s &%s = *(emu_t_%s *)emu::block_static(&emu_key_%s, sizeof(emu_t_%s));'
                       % (name, name, kind, dims, name, name, name, name, name))
        return ' '.join(res)
    s = re.sub(r'\b__shared__\s+' + align + r'((?:\w+::)*\w+(?:<[^;>]*>)?)\s+(\w[^;]*);', fixed, s)

    # kernel<<<config>>>(args)
    while True:
        at = s.find('<<<')
        if at < 0:
            break
        j = at
        while s[j - 1] in ' \t\n':
            j -= 1
        end_name = j
        if s[j - 1] == '>':
            depth = 0
            while True:
                j -= 1
                if s[j] == '>':
                    depth += 1
                elif s[j] == '<':
                    depth -= 1
                    if depth == 0:
                        break
        while re.match(r'[\w:]', s[j - 1]):
            j -= 1
        name = s[j:end_name]
        close = s.index('>>>', at)
        config = s[at + 3:close]
        open_ = s.index('(', close)
        end = match(s, open_)
        args = s[open_ + 1:end - 1].strip() # may end with a line marker
        s = s[:j] + 'emu::launch_plain(emu::config(%s), %s%s\n)' % (config, name, ', ' + args if args else '') + s[end:]

    # places to force the host's choices
    host = 'back_half' in s
    s, n = re.subn(r'(back_half\s+back_of\s*\([^)]*\)\s*\{)',
                   r'\1 if (emu::env_is("EMU_BACK", "apart")) return back_half::apart; if (!WIDE && emu::env_is("EMU_BACK", "beside")) return back_half::beside;'
                   r' if (!WIDE && OP == VLA_VLA && dkp == 64 && emu::env_is("EMU_BACK", "brief")) return back_half::brief;'
                   r' if (!WIDE && dkp == 64 && dvp <= 64 && emu::env_is("EMU_BACK", "pairs")) return back_half::pairs;', s)
    s, m = re.subn(r'(static\s+int\s+chunks_a_segment\s*\(\s*int64_t heads,\s*int64_t chunks[^)]*\)\s*\{)',
                   r'\1 if (emu::env("EMU_PER_SEGMENT", 0)) return (int)std::min<int64_t>(emu::env("EMU_PER_SEGMENT", 0), chunks > 1 ? chunks : 1);', s)
    s, b = re.subn(r'constexpr\s+int64_t\s+BUDGET\s*=\s*([^;]*);', r'static const int64_t BUDGET = emu::env("EMU_BUDGET", \1);', s)
    s = re.sub(r'(a\.early = )([^;]*);', r'\1(\2) && emu::env("EMU_EARLY", 1); if (emu::env("EMU_EARLY", 1) == 2) a.early = true;', s)
    s = re.sub(r'(a\.lone = )([^;]*);', r'\1(\2); if (emu::env("EMU_LONE", -1) >= 0) a.lone = emu::env("EMU_LONE", -1);', s)
    if host and not (n and m and b):
        sys.exit('rewrite.py: chunk_host.cuh has no back_of (%d), chunks_a_segment (%d) or BUDGET (%d)' % (n, m, b))
    return s


if __name__ == '__main__':
    source = open(sys.argv[1]).read()
    result = rewrite(source)
    open(sys.argv[2], 'w').write(result)
