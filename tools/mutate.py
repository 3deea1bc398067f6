#!/usr/bin/env python3
"""Mutation testing: proves that the tests would notice the faults that break exactness or silently weaken the drafts.

Each mutant replaces one piece of text of a production source. The tree is copied to a scratch folder (the repository is never
edited), built once, checked to pass, then rebuilt incrementally per mutant; the named test program must fail. The run fails if a
mutant survives, does not build, or if its text does not occur exactly once any more, so the table cannot rot.

    tools/mutate.py [--ci] [--only SUBSTRING] [--release] [--scratch DIR] [--jobs N] [--list]

--ci runs the marked subset (about ten minutes on 2 cores, the first build included). --release compiles as preset release does:
slower, but where ccache knows that build, the first build is done at once.
"""
import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault('HUNCH_THIRD_PARTY', str(ROOT / 'build/third_party'))  # the scratch tree has none of its own
BUILD = 'build/mutate'  # in the scratch folder, as deep as the presets' are: compilers see the same relative paths
KINDS = ('.cpp', '.h', '.c', '.map', '.in', '.html', '.css', '.js')  # of files that the build reads


class Mutant(NamedTuple):
    name: str
    file: str
    find: str
    replace: str
    program: str
    filter: str
    ci: bool = False


RATIO, POINT, CHANCE = 'src/accept/rules/ratio.cpp', 'src/accept/rules/point.cpp', 'src/accept/chance.h'
OWN, NGRAM = 'src/accept/own_token.h', 'src/draft/proposers/ngram.cpp'
SIBLINGS = 'src/accept/sibling_laws.h'
TREE, GUESS, SUFFIX = 'src/draft/suffix_tree.cpp', 'src/draft/suffix_guess.cpp', 'src/draft/proposers/suffix.cpp'
SELF, STEP, PASS = 'src/draft/proposers/self.cpp', 'src/engine/step.cpp', 'src/model/pass.cpp'
COPY, SCORED, TOP_K = 'src/sparse/draft_copy.cpp', 'src/sparse/scored_policy.cpp', 'src/backend/reference/top_k.cpp'
SCHEDULER, CACHE = 'src/engine/scheduler.cpp', 'src/kv/prefix_cache.cpp'
FOLLOWER, TREES, DRAWN = 'src/draft/follower.cpp', 'src/draft/follower_trees.cpp', 'src/draft/drawn_tree.h'
MEDUSA = 'src/draft/proposers/medusa.cpp'
BLIND, GROW = 'src/draft/follower_blind.cpp', 'src/backend/reference/tree.cpp'
STREAMING, QUEST = 'src/sparse/policies/streamingllm.cpp', 'src/sparse/policies/quest.cpp'

# The chi-square of the joint of three tokens at T 1, and the tests around it.
CHI2 = ('law_suite', 'Reference/RatioLaw.KeepsTheJointOfThreeTokens/reference_T_1_gamma2')
CHI3 = ('law_suite', 'Reference/RatioLaw.KeepsTheJointOfThreeTokens/reference_T_1_gamma3')
TREE3 = ('law_suite', 'Wide/DrawnTrees.KeepTheJointOfThreeTokens/three')
SELF_TREE = ('law_suite', 'Reference/SelfTrees.KeepTheJointOfThreeTokens/T_1_gamma2')
NET_TREE = ('law_suite', 'All/DrafterTrees.KeepTheJointOfThreeTokens/wide')
SHAPES = ('law_suite', 'SampledTrees.WhatWasDrawnDoesNotDecideAboutSiblings')
STREAMS = ('law_suite', 'Law.MatchEmitsThePlainStreamForEverySampling')
PROOF = ('accept_test', '*')
ROUNDS = ('conformance_suite', 'RowInvariance.RoundsLeave*')
CROWD = ('conformance_suite', 'Crowd.*')
POISON = ('poison_suite', 'Poison.ChangesNothingOnTheReferenceBackend')
ORACLE = ('selection_suite', 'Selection.*')
POLICIES = ('sparse_test', 'Policies.*')
GROWN = ('draft_test', 'GrownTree.*')
LATE_TREES = ('device_suite', 'LateDevice.GrowsTheTreesOfTheReferenceNodeByNode')
LATE = ('device_suite', '*late:LateDevice.*')
FOLLOWS = ('draft_test', 'Follows.*')
HEADS = ('draft_test', 'MedusaDrafts.*')
LIGHT = ('conformance_suite', 'LightDrafts.GuessedRowsMakeTheSameDraftsInFewerPasses')

WEIGHT = 'return double(p(token)) - (subtract ? double(q(token)) : 0.0);'
BELOW = 'return p > 0 && q > 0 && u * q <= p;'
REJECT = 'return void(out.next = chance.residual(p, q, position));'
TRY_ONE = 'if (chance.below(laws_.p(x), laws_.q(x), position, rank)) return node;'
SHRINK = 'p_[i] = std::max(0.0, p_[i] - q_[i]) / left;'
BONUS = 'out.next = target.choice(row);'
KEPT_TO = 'if (who.grammar() && who.plan.verify) keep_to'
STORE = 'backend_.store_kv({.layer = layer, .k = k, .v = v, .kv = own, .first_entry = segment.first_position + skipped});'
LAST = 'last[row] = int32_t(first_entry + offset_of(segment, row));'
SAMPLED = '.leads = to.leads});\n  }'
ROUTER, CPU_EXPERTS = 'src/backend/reference/experts.cpp', 'src/backend/cpu/experts.cpp'
EXPERT_TENSORS = 'src/checkpoint/expert_tensors.cpp'
NSA, CPU_NSA, NSA_BODY = 'src/backend/ops/nsa.cpp', 'src/backend/cpu/nsa.cpp', 'src/backend/cpu/nsa_body.h'
NSA_RULES, NSA_KERNEL = ('backend_test', 'Nsa*'), ('backend_test', 'CpuNsa*')
SHARE = 'src/model/index_sharing.cpp'
NSA_ROUNDS = ('conformance_suite', 'Models/Nsa.*')
EXPERTS, SINKS = ('backend_test', 'Route.*:*Experts.*'), ('backend_test', 'CpuAttention.*Sink*')
RULED = ('backend_test', '*Rules.*:LogitState.*')
PATCH, SAMPLE, STATE = 'src/backend/ops/logit_patch.cpp', 'src/backend/reference/sample.cpp', 'src/backend/ops/logit_rules.cpp'
NOISE, STOPS = 'src/backend/cpu/sample_body.h', 'src/text/stop_texts.cpp'
STRUCTURED, GRAMMARS = ('structured_suite', '*'), ('text_test', 'Grammars.*')
MASK, GUARD, GRAMMAR = 'src/engine/grammar_mask.cpp', 'src/text/json_guard.h', 'src/text/grammar.cpp'
PARENT = 'row = args.parents.empty() ? row - 1 : args.parents[size_t(row)]'


def redraw(change):
    """Drafts drawn again under other sampling parameters, while q stays what it was."""
    return (SAMPLED[:-4] + '\n    if (given) {\n      SamplingParams other = sequence.sampling;\n      ' + change +
            '\n      backend_.sample({.logits = logits, .params = other, .key = sequence.noise, .stream = draft_stream(draft.depth), '
            '.positions = positions, .tokens = to.tokens});\n    }\n  }')


MUTANTS = [
    # The ratio rule (table A of the literature's usual mistakes).
    Mutant('reject: a sample of p instead of the residual', CHANCE, WEIGHT, 'return double(p(token));', *CHI2, True),
    Mutant('residual |p - q|', CHANCE, WEIGHT, 'return std::abs(double(p(token)) - double(q(token)) * subtract);', *CHI2),
    Mutant('residual max(q - p, 0)', CHANCE, WEIGHT,
           'return subtract ? double(q(token)) - double(p(token)) : double(p(token));', *CHI2),
    Mutant('residual smoothed by 0.01', CHANCE, WEIGHT, WEIGHT.replace(' : 0.0);', ' : 0.0) + 0.01;'), *CHI2),
    Mutant('residual by inverse CDF, not renormalised', CHANCE, 'for (const bool subtract : {true, false}) {',
           'double below_u = 0;\n    const double u0 = uniform(key_, NoiseStream::Residual, uint32_t(position), 0);\n'
           '    for (int64_t t = 0; t < p.extent[0]; ++t) {\n      below_u += std::fmax(0.0, double(p(t)) - double(q(t)));\n'
           '      if (u0 < below_u || t + 1 == p.extent[0]) return int32_t(t);\n    }\n    for (const bool subtract : {true, false}) {',
           *CHI2, True),
    Mutant('residual with squared weights', CHANCE, '/ weight;', '/ (weight * weight);', *CHI2),
    Mutant('accept with (p/q)^2', CHANCE, BELOW, 'return p > 0 && q > 0 && u * q * q <= p * p;', *CHI2),
    Mutant('accept where q = 0', CHANCE, BELOW, 'return p > 0 && u * q <= p;', *PROOF, True),
    Mutant('accept where p = 0 and u is small', CHANCE, BELOW, 'return q > 0 && u * q <= p + 1e-3;', *PROOF),
    Mutant('typical acceptance', RATIO, '!chance.below(p(x), q(x), position, 0)', '!(p(x) > 0.15f)', *CHI2),
    Mutant("always accept the target's arg max", RATIO, '!chance.below(p(x), q(x), position, 0)',
           '!chance.below(p(x), q(x), position, 0) && [&] { for (int64_t i = 0; i < p.extent[0]; ++i) if (p(i) > p(x)) return true; '
           'return false; }()', *PROOF, True),
    Mutant('stale q: the previous position', RATIO, '(tree.q)[tree.law_of(row)]', '(tree.q)[row > 0 ? row - 1 : 0]', *CHI2, True),
    Mutant('bonus from q', RATIO, BONUS,
           'static const float zero = 0;\n    View<const float, 1> nothing(&zero, tree.q.extent[1]);\n    nothing.stride[0] = 0;\n'
           '    out.next = out.path.empty() ? target.choice(row) : chance.residual(View<const float, 2>(tree.q)[row - 1], nothing, '
           'first + row);', *CHI2),
    Mutant('bonus from the row before', RATIO, BONUS, 'out.next = target.choice(row > 0 ? row - 1 : row);', *CHI2, True),
    Mutant('bonus emitted after a rejection', RATIO, REJECT,
           '{\n        out.path.push_back(node);\n        out.tokens.push_back(chance.residual(p, q, position));\n'
           '        row = node + 1;\n        break;\n      }', *CHI2),
    Mutant('no stop after the first rejection', RATIO, REJECT,
           '{\n        out.path.push_back(node);\n        out.tokens.push_back(chance.residual(p, q, position));\n'
           '        row = node + 1;\n        continue;\n      }', *CHI2, True),
    Mutant('one coin for all positions', CHANCE, 'NoiseStream::Accept, uint32_t(position)', 'NoiseStream::Accept, 0', *CHI3, True),
    Mutant('residual noise is the coin', CHANCE, 'NoiseStream::Residual', 'NoiseStream::Accept', *CHI2, True),
    Mutant("residual noise is the draft's", CHANCE, 'NoiseStream::Residual', 'NoiseStream::Draft', *CHI2),
    Mutant('draft noise is the coin', SELF, 'draft_stream(draft.depth)', 'NoiseStream::Accept', *CHI2, True),
    Mutant('draft noise used again in the next round', SELF, 'draft_stream(draft.depth)', 'NoiseStream::Draft', 'law_suite',
           'Law.RatioKeepsItWhereTheDrafterLearnsFromRejectedDrafts', True),
    Mutant('drafts colder than the q they record', SELF, SAMPLED, redraw('other.temperature *= 0.7f;'), *CHI2, True),
    Mutant('drafts with min-p, q without', SELF, SAMPLED, redraw('other.min_p = 0.2f;'), *CHI2),
    Mutant('q truncated to its three best and renormalised, drafts not', SELF, SAMPLED,
           SAMPLED[:-4] + '\n    auto q = tree.q;\n    const int at = draft.first;\n    if (given)\n'
           '      for (int cut = 0; cut + 3 < int(q.extent[1]); ++cut) {\n'
           '        int least = -1;\n        for (int i = 0; i < int(q.extent[1]); ++i)\n'
           '          if (q(at, i) > 0 && (least < 0 || q(at, i) < q(at, least))) least = i;\n'
           '        if (least < 0) break;\n        const float rest = 1 - q(at, least);\n        q(at, least) = 0;\n'
           '        for (int i = 0; i < int(q.extent[1]); ++i) q(at, i) /= rest;\n      }\n  }', *CHI2),
    # Deterministic drafts, which have no q.
    Mutant('point rule, rejected id not removed', POINT, 'chance.without(p, x, position)', 'chance.without(p, -1, position)', *PROOF, True),
    Mutant('point rule: the rejected id may return', CHANCE, 'other == left_out ? 0.0 : double(p(other))', 'double(p(other))', *PROOF),
    Mutant('point rule: keeps the likely without a coin', POINT, '!chance.below(p(x), 1, position, 0)', '!(p(x) > 0.4f)', *PROOF),
    Mutant('top-k children treated with the ratio rule', RATIO,
           'if (tree.law == DraftLaw::Point) return follow_own_tokens(tree, target, out);', '', *PROOF, True),
    Mutant('a target sample for every child', OWN, 'tree.tokens(child) == own', 'tree.tokens(child) == target.choice(node + 1)', *PROOF, True),
    Mutant('a second target sample where no child fits', OWN, 'return void(out.next = own);',
           'return void(out.next = tree.size > 0 ? target.choice(node + 1) : own);', *PROOF),
    # Trees of sampled nodes (table B).
    Mutant('siblings: q not renormalised for the second', SIBLINGS, 'x = mass > 0 ? x / mass : 0;', '(void)x;', *TREE3, True),
    Mutant('siblings: the second tested against p, not the residual', RATIO,
           '    laws_.refuse(tree.tokens(node));\n    for (int rank = 1; (node = tree.sibling(node)) >= 0; ++rank) {',
           '    const SiblingLaws whole = laws_;\n    laws_.refuse(tree.tokens(node));\n'
           '    for (int rank = 1; (node = tree.sibling(node)) >= 0; ++rank) {\n'
           '      if (tree.tokens(node) >= 0 && laws_.q(tree.tokens(node)) > 0 && '
           'chance.below(whole.p(tree.tokens(node)), laws_.q(tree.tokens(node)), position, rank)) return node;', *TREE3, True),
    Mutant('siblings: a target sample for every sampled child', RATIO, TRY_ONE,
           'if (chance.among(laws_.target(), position) == x) return node;', *PROOF, True),
    Mutant('siblings: one coin for all of them', CHANCE, 'uint32_t(rank))', '0)', *PROOF, True),
    Mutant('siblings: a token drawn again is refused again', RATIO, ' || !(laws_.q(x) > 0)', '', *PROOF, True),
    Mutant('siblings: the residual loses the refused token only', SIBLINGS, SHRINK,
           'p_[i] = int32_t(i) == token ? 0 : p_[i];', *PROOF, True),
    Mutant('siblings: p not renormalised', SIBLINGS, SHRINK, 'p_[i] = std::max(0.0, p_[i] - q_[i]);', *PROOF, True),
    Mutant('siblings: after the last, the residual of the first', RATIO, 'chance.among(laws_.target(), position)',
           'chance.residual(p, q, position)', *TREE3),
    Mutant('siblings: after the last, a sample of p', RATIO, 'chance.among(laws_.target(), position)', 'target.choice(row)', *TREE3),
    Mutant('siblings: q keeps the refused token', SIBLINGS, 'q_[size_t(token)] = 0;', '', *PROOF),
    Mutant('siblings: where rounding refused, nothing is left', SIBLINGS, 'if (left > 0)', '', *PROOF),
    Mutant('self: a sibling where the draw was close', SELF, 'if (!draft.given()) return by_noise_', 'return by_noise_', *SHAPES, True),
    Mutant('self: drawn children that look weak are dropped', SELF, 'draft.nodes >= limits.max_tokens || token < 0)',
           'draft.nodes >= limits.max_tokens || token < 0 || (draft.given() && tree.q(row, token) < 0.2f))', *SELF_TREE, True),
    Mutant('self: the choice is drawn twice', SELF, 'add(level + i, seconds(at + i), ', 'add(level + i, chosen(at + i), ', *SHAPES),
    Mutant("self: a row's children with another row's q", SELF, 'tree.q.slice(draft.first, count)', 'tree.q.slice(0, count)', *SELF_TREE),
    Mutant('drawn trees: a draw is dropped for what it is', DRAWN, 'draws[size_t(nth)] >= 0; ++nth', 'draws[size_t(nth)] > 0; ++nth',
           *NET_TREE, True),
    Mutant('drawn trees: how many depends on the draw', TREES, 'draft.drawn.plan(first_kept_);',
           'for (int i = 0; i < draft.level; ++i) first_kept_[size_t(i)] = q(draft.rows - draft.level + i, ranked(row + i, 0));\n'
           '  draft.drawn.plan(first_kept_);', 'law_suite', 'All/DrafterTrees.*', True),
    Mutant("drawn trees: another node's q", TREES, 'out.laws[size_t(number) + 1] = node.row;', 'out.laws[size_t(number) + 1] = node.row - 1;',
           *NET_TREE, True),
    Mutant("drawn trees: a level's q over the one before", FOLLOWER, 'draft.branch ? draft.rows - draft.level : draft.depth',
           '0 * draft.depth', *NET_TREE),
    Mutant('drawn trees: noise of the coin', FOLLOWER, 'given ? draft_stream(draft.depth)', 'given ? NoiseStream::Accept', *NET_TREE),
    Mutant('drawn trees: a form of what was drawn', DRAWN, 'const float chance = path_chance(level_[i]) * chance_of(first_kept[i], children_[i]);',
           'const float chance = path_chance(level_[i]) * chance_of(first_kept[i], children_[i]) * '
           '(level_[i] < 0 ? 1 : 1 + float(nodes_[size_t(level_[i])].token % 3));', 'draft_test', 'DrawnTree.*'),
    # The match rule.
    Mutant('match: accept without comparing', OWN, ' && tree.tokens(child) == own', '', *STREAMS, True),
    Mutant('match: next from the row after', OWN, 'target.choice(node + 1)', 'target.choice(node + 2)', *PROOF),
    Mutant("match: emit the draft of a rejected position", OWN, 'return void(out.next = own);',
           'return void(out.next = node + 1 < tree.size ? tree.tokens(node + 1) : own);', *STREAMS, True),
    Mutant('target noise of another position', STEP, 'positions(tree.parents[size_t(row) - 1] + 1) + 1', 'positions(0)', *STREAMS, True),
    Mutant('target noise from the draft stream', STEP, '.stream = NoiseStream::Target', '.stream = NoiseStream::Draft', *STREAMS),
    Mutant("drafts without the target's noise", SELF, ': NoiseStream::Target', ': NoiseStream::Draft', *STREAMS),
    Mutant('drafts with the noise of the position before', SELF, 'int32_t(sequence.committed_len + draft.depth + 1 +',
           'int32_t(sequence.committed_len + draft.depth +', *STREAMS),
    # The hot loop and the KV cache.
    Mutant('verify does not store row 0', PASS, STORE,
           'const int64_t skip = segment.phase == Segment::Phase::Verify && segment.num_rows > 1 ? 1 : 0;\n'
           '  backend_.store_kv({.layer = layer, .k = k.slice(skip, segment.num_rows - skip), .v = v.slice(skip, segment.num_rows - '
           'skip), .kv = own, .first_entry = segment.first_position + skip});', *ROUNDS, True),
    Mutant("verify trusts the drafts' K and V", PASS, STORE,
           'const int64_t skip = segment.phase == Segment::Phase::Verify ? segment.num_rows - 1 : 0;\n'
           '  backend_.store_kv({.layer = layer, .k = k.slice(skip, segment.num_rows - skip), .v = v.slice(skip, segment.num_rows - '
           'skip), .kv = own, .first_entry = segment.first_position + skip});', *POISON, True),
    Mutant('rows read one entry too far', PASS, LAST, 'last[row] = int32_t(first_entry + offset_of(segment, row) + 1);',
           *POISON, True),
    Mutant('rows do not read themselves', PASS, LAST,
           'last[row] = int32_t(std::max<int64_t>(0, first_entry + offset_of(segment, row) - 1));', 'golden_suite', 'Folders/*qwen3_tied'),
    Mutant('drafts stand one position too early', PASS, 'int32_t(segment.first_position + offset_of(segment, row));',
           'int32_t(segment.first_position + offset_of(segment, row) - (segment.phase == Segment::Phase::Draft));',
           'conformance_suite', 'Families/TinyModel.*Reference*/qwen3_tied'),
    Mutant('committed one entry too many', 'src/kv/commit.h', 'commit.accepted + 1;', 'commit.accepted + 2;', 'kv_test', '*', True),
    Mutant('committed one entry too few', 'src/kv/commit.h', '+= commit.accepted + 1;', '+= commit.accepted;', 'kv_test', '*'),
    Mutant('rejected drafts stay', STEP, 'commit_path(sequence, tree.size + 1, verdict.tokens, verdict.next, who.path_rows)',
           'commit_path(sequence, tree.size + 1, std::span<const int32_t>(tree.tokens.data, size_t(tree.size)), verdict.next, '
           'who.path_rows)',
           'engine_test', 'Step.*', True),
    Mutant('drafts past the end of the context', 'src/engine/running.cpp', 'sequence.max_len - sequence.len() - 1',
           'sequence.max_len - sequence.len()',
           'engine_test', 'Step.*', True),
    # Trees.
    Mutant('tree: no more nodes than tokens are left', 'src/engine/running.cpp',
           'return int(std::min<int64_t>(plan.nodes, parts_.context_len - sequence.len()));', 'return depth;', 'engine_test', 'Step.*'),
    Mutant('tree: the kept path is not closed up', STEP,
           'close_up(*parts_.backend, {parts_.store.get(), sequence.pages.view()}, sequence.committed_len, who.path_rows);', '',
           *CROWD, True),
    Mutant('tree: closed up by number of the row, not by the path', STEP, 'who.path_rows.push_back(node + 1);',
           'who.path_rows.push_back(int32_t(who.path_rows.size()));', *CROWD),
    Mutant("tree: a row's position is its number", PASS, 'if (segment.parents.empty()) return row;', 'return row;', *CROWD, True),
    Mutant('tree: rows read their siblings', PASS, '.parents = segment.parents, .first = segment.round_row',
           '.parents = {}, .first = segment.round_row', *CROWD),
    Mutant("tree: positions by the number of the node", STEP, 'positions(row) = positions(tree.parents[size_t(row) - 1] + 1) + 1',
           'positions(row) = positions(row - 1) + 1', *CROWD),
    Mutant('tree: the second choice is the first', SAMPLE, 'args.seconds(r) = second;', 'args.seconds(r) = args.tokens(r);',
           'backend_test', '*CpuSample.*'),
    Mutant('tree: the lead is over the worst', SAMPLE, 'else if (score > next) second = id', 'else if (score < next) second = id',
           'backend_test', '*CpuSample.*'),
    Mutant("tree: a lookup's chains longer than the drafts asked for", 'src/draft/proposer.h',
           'max_depth > 0 ? std::min(max_depth, max_tokens) : max_tokens', 'max_tokens', 'draft_test', '*KeepsItsLimits*'),
    Mutant("suffix: a tree's paths longer than the drafts asked for", GUESS, 'taken.depth < max_depth', 'true', 'draft_test',
           '*KeepsItsLimits*'),
    # Draft models: what they read, and in whose numbers.
    # Medusa: which row, position and noise a guess is made of.
    Mutant('medusa: a guess for the position before', MEDUSA, 'sequence.committed_len + 1 + row.head', 'sequence.committed_len + row.head',
           *HEADS),
    Mutant('medusa: points with noise', MEDUSA, 'if (!draft.noisy) args.params', 'if (false) args.params', *HEADS),
    Mutant('medusa: the first of the rows that are final', MEDUSA, 'rows.row(rows.count - 1)', 'rows.row(0)', *HEADS),
    Mutant('medusa: a state that is not the last', MEDUSA, ' || draft.known != task.sequence->committed_len', '', *HEADS),
    Mutant('medusa: nodes behind one that was cut', MEDUSA, 'if (parent == kCut || ', 'if (', *HEADS),
    Mutant('trees on a device: branches read the ancestors of others', BLIND, 'if (draft->lengths.size() > 1)\n', 'if (false)\n',
           *LATE_TREES),
    Mutant("trees on a device: another parent's feature", BLIND,
           '.index = next_rows_.view<const int32_t>(level_rows_).slice(next, draft->level)', '', *LATE_TREES),
    Mutant('grown trees: the last of equals first', GROW, 'tree.chances(a) > tree.chances(b)',
           'tree.chances(a) > tree.chances(b) || (tree.chances(a) == tree.chances(b) && a > b)', *GROWN),
    Mutant('grown trees: chances of a node alone', GROW, 'none ? 0 : before * double', 'none ? 0 : double', *GROWN),
    Mutant('grown trees: the row of another parent', GROW, ' - first) / k)', ' - first) / (k + 1))', *GROWN),
    Mutant('draft model: drafts that were dropped count as read', FOLLOWER,
           'std::min<int64_t>(draft.stored, int64_t(verdict.path.size()))', 'draft.stored', *FOLLOWS),
    Mutant('draft model: the last draft counts as read', FOLLOWER, 'draft.stored = draft.depth;', 'draft.stored = draft.depth + 1;',
           *FOLLOWS),
    Mutant('draft model: pages that nobody filled are known', FOLLOWER, 'while (run < found && known(run)) ++run;', 'run = found;',
           *FOLLOWS),
    Mutant('draft model: a seat remembers who left it', FOLLOWER, 'draft.stored = 0;  // of whoever', 'draft.rows = 1;  // of whoever', *FOLLOWS),
    Mutant("draft model: reads past its own context", FOLLOWER, 'std::min(sequence.committed_len, net_->longest())',
           'sequence.committed_len', *FOLLOWS),
    Mutant("draft model: reads the target's numbers", FOLLOWER, 'own(sequence.tokens[size_t(seat.fed + i)])',
           'sequence.tokens[size_t(seat.fed + i)]', 'conformance_suite', 'DraftModel.IsRight*'),
    Mutant('draft model: other tokens under the same numbers', 'src/engine/vocab_match.cpp', 'if (mode == "same") HUNCH_OK(',
           'if (mode == "none") HUNCH_OK(', 'engine_test', 'VocabMatch.*'),
    # Who runs, and who shares.
    Mutant('scheduler: rows of those who decode are not taken off', SCHEDULER,
           'std::min({wanted, budget / 2, limits_.verify_rows - int64_t(plan_.decodes.size())})',
           'std::min({wanted, budget / 2, limits_.verify_rows})', 'engine_test', 'Scheduler.*'),
    Mutant('scheduler: drafts without pages', SCHEDULER, 'sequence.committed_len + decode.drafts + 2, pool_',
           'sequence.committed_len + 1, pool_', 'engine_test', 'Scheduler.*', True),
    Mutant('scheduler: tentative rows count as committed', SCHEDULER, 'cache_->publish(who.sequence, who.published);',
           '{\n    const int64_t committed = who.sequence.committed_len;\n'
           '    who.sequence.committed_len = std::min(who.sequence.len(), who.sequence.pages.capacity());\n'
           '    cache_->publish(who.sequence, who.published);\n    who.sequence.committed_len = committed;\n  }',
           'engine_test', 'Scheduler.*', True),
    Mutant('scheduler: a preempted request keeps its committed length', SCHEDULER, 'sequence.committed_len = found, who.published = {.entries = found};',
           'who.published = {.entries = found};\n  sequence.committed_len = sequence.len() > sequence.prompt_len ? who.prefill_target : found;',
           'engine_test', 'Scheduler.*', True),
    Mutant('scheduler: a preempted request runs its prompt again only', SCHEDULER, 'sequence.len() - 1 : 0', 'int64_t(0) : 0', 'engine_test',
           'Scheduler.*'),
    Mutant('scheduler: a prompt is found to its last row', SCHEDULER, 'who.prefill_target - selecting_rows(who), sequence.cache_salt);',
           'who.prefill_target, sequence.cache_salt);', 'engine_test', 'Scheduler.*'),
    Mutant('scheduler: a selection from rows of two chunks', SCHEDULER,
           'if (rows < left) rows = std::min(rows, std::max<int64_t>(0, left - selecting_rows(who)));', '', 'engine_test',
           'Scheduler.*'),
    Mutant('prefix cache: pages with tentative rows', CACHE, 'so_far.entries + kPageLen <= sequence.committed_len;',
           'so_far.entries < sequence.committed_len;', 'kv_test', 'PrefixCache.*', True),
    Mutant('prefix cache: hashes are compared, tokens are not', CACHE,
           ' &&\n        std::equal(tokens.begin(), tokens.end(), it->second->tokens.begin())', '', 'kv_test', 'PrefixCache.*', True),
    Mutant('prefix cache: gives up the beginning before what continues it', CACHE, 'node.children > 0 || ', '', 'kv_test',
           'PrefixCache.*'),
    Mutant('prefix cache: gives up pages that are held', CACHE, ' || pool_.holders(node.page) > 0', '', 'kv_test', 'PrefixCache.*'),
    # Trees that the planner asks for.
    Mutant('auto: a tree is asked for as a chain', 'src/engine/controller.cpp', 'who.branch = true, who.top_k = width;', 'who.top_k = width;',
           'engine_test', 'TreesUnderAuto.*'),
    Mutant('auto: trees under rules that take none', 'src/engine/controller.cpp', '.nodes = who.rule->takes_branches() ? ', '.nodes = true ? ',
           'engine_test', 'TreesUnderAuto.*', True),
    Mutant("auto: trees wider than there are entries", 'src/engine/planner.cpp',
           'if (arm.width > 1) chain.longest = std::min(chain.longest, view.nodes / arm.width);', '', 'engine_test', 'TreesInAuto.*'),
    # Proposers: the output cannot show these either.
    Mutant('alarm: a kept token is no reason to be quiet', 'src/engine/service.cpp', 'used.kept > 0 ? 0 : drafter', 'drafter', 'engine_test',
           'Alarm.*', True),
    Mutant('alarm: one request at a time', 'src/engine/service.cpp', 'drafter.luckless + used.rounds', 'used.rounds', 'engine_test',
           'Alarm.*'),
    Mutant("alarm: everybody's rounds", STEP, '++by.rounds, by.kept', '++who.drafters.back().rounds, by.kept', 'engine_test', 'Alarm.*'),
    Mutant('guessed rows: kept without comparing', SELF, 'if (task.tree->tokens(i) != next) break;', '', *LIGHT, True),
    Mutant('guessed rows: all with the first one\'s noise', SELF, 'draft.depth + 1 + (draft.chain() ? i : 0)', 'draft.depth + 1', *LIGHT),
    Mutant('guessed rows: the wrong ones stay noted', SELF,
           'if (task.policy) task.policy->forget_drafts(*task.sequence, draft.first);', '', *LIGHT),
    Mutant('layer step: every layer chooses', COPY, 'seen++ % layer_step == 0', 'layer_step > 0', *POLICIES),
    Mutant('layer step: layers behind copy nothing', SCORED, 'return copy_.copy(layer, slot, tail_last, seen.kv);\n  View', 'return;\n  View',
           *POLICIES),
    Mutant('no drafts: the first row of the pass before', SCORED, 'seen.lse.slice(seen.lse.extent[0] - 1, 1)',
           'seen.lse.slice(0, 1)', *POLICIES),
    Mutant('deferred rows: weighed by another pass', SCORED, 'lse_of_drafts(layer, info).data != nullptr;',
           'lse_of_last(layer, info).data != nullptr;', *POLICIES),
    # A device: results come late, chains run blind, selections are read where they lie.
    Mutant('device: results are read before they are there', STEP, 'if (const Status done = parts_.backend->synchronize(); !done.ok()) return fail_all(plan, done.error());', '', *LATE, True),
    Mutant('device: drafts land on the pending token', STEP, '.to = ids.slice(rows, tree.size)', '.to = ids.slice(rows - 1, tree.size)', *LATE),
    Mutant('device: q of every draft in the first place', SELF, 'draft.depth = draft.first = level;', 'draft.depth = level, draft.first = 0;',
           *LATE, True),
    Mutant('device: one stream of noise for all drafts', SELF, 'draft.depth = draft.first = level;', 'draft.depth = 0, draft.first = level;', *LATE),
    Mutant('device: the tail begins an entry late', PASS, 'run.tail_first = selection.tail_first;', 'run.tail_first = selection.tail_first + 1;',
           *LATE),
    Mutant('device: a tree of another size', SELF, 'tree.in_flight = true;', '', *LATE),
    Mutant('n-gram: the latest occurrence', NGRAM, 'if (start < 0) start = own;', 'start = own;', 'draft_test', 'Ngram.*'),
    Mutant('n-gram: the suffix finds itself', NGRAM, 'slot.extend(tokens, task.sequence->len() - 1);\n      const',
           'slot.extend(tokens, task.sequence->len());\n      const', 'draft_test', 'Ngram.*'),
    Mutant('n-gram: tokens are not compared', NGRAM, 'table[at] >= 0 && !std::equal', 'false && !std::equal', 'draft_test', 'Ngram.*'),
    Mutant('suffix tree: forgetting leaves split nodes', TREE, 'merge_with_only_child(node);\n    }', ';\n    }', 'draft_test',
           'SuffixTree.*'),
    Mutant('suffix tree: labels stay in the oldest text', TREE, 'nodes_[size_t(child)].text = at + uint32_t(done);\n    raised', 'raised',
           'draft_test', 'SuffixTree.*'),
    Mutant('suffix tree: ties to the newest child', TREE, 'token_at(x.text) < token_at(y.text)', 'true', 'draft_test', 'SuffixTree.*'),
    Mutant('suffix tree: a removal breaks a run of the table', TREE, 'table_[hole] = table_[at];\n    hole = at;', 'break;', 'draft_test',
           'SuffixTree.*'),
    Mutant('suffix: unfinished suffixes are not counted', SUFFIX, 'tokens.last(tail), tokens.last(context)', '{}, tokens.last(context)',
           'draft_test', 'Suffix.*'),
    Mutant('suffix: the shorter of equal matches', GUESS, 'guess.score >= best.score', 'guess.score > best.score', 'draft_test', 'Suffix.*'),
    Mutant('suffix: a preempted output counts twice', SUFFIX, 'std::max(sequence.prompt_len, sequence.len())', 'sequence.prompt_len',
           'draft_test', 'Suffix.*'),
    # Selections: the output cannot show these, so tests of the sets and of the acceptance must.
    Mutant('a selection past the prefix', COPY, '.n = valid(slot) / block_,', '.n = valid(slot) / block_ + 1,', *POLICIES, True),
    Mutant("the next row's log-sum-exp", SCORED, '.to = to.slice(info.round_row, info.num_rows)});',
           '.to = to.slice(std::min(info.round_row + 1, max_rows_ - info.num_rows), info.num_rows)});', *ORACLE, True),
    Mutant('last accepted row: one too early', SCORED, 'used_[size_t(commit.rows.empty() ? i :',
           'used_[size_t(commit.rows.empty() ? std::max(0, i - 1) :', *ORACLE),
    Mutant('first and last: all rows', SCORED, 'how_.rows == Rows::All || how_.rows == Rows::Accepted;',
           'how_.rows != Rows::Last;', *ORACLE),
    Mutant('spread backwards', TOP_K, 'for (int64_t j = args.n - 1; j >= step; --j) {',
           'for (int64_t i = 0; i < args.n / 2; ++i) std::swap(scores[size_t(i)], scores[size_t(args.n - 1 - i)]);\n'
           '      for (int64_t j = args.n - 1; j >= step; --j) {', *ORACLE),
    Mutant('ties to the higher index', TOP_K, 'return std::isnan(y) ? !std::isnan(x) : x > y;', 'return x > y || (x == y && a > b);',
           *ORACLE, True),
    Mutant('the copy lacks the last verified row', COPY, '.tail_last = tail_last', '.tail_last = tail_last - 1', *POLICIES),
    Mutant('one entry too many in the budget', 'src/sparse/policy.cpp', '- 1e-9', '', 'sparse_test', '*', True),
    Mutant('streamingllm without its sinks', STREAMING, 'choose_ends(layer, slot, sinks_)', 'choose_ends(layer, slot, 0)', 'conformance_suite',
           'Selections.OfStreamingLlm*'),
    # Bans, bias and penalties: each row by its own history.
    Mutant('rules: penalties ignore the drafts of the path', PATCH, 'if (known(id)) ++on_path_[size_t(id)];', '{}', *RULED, True),
    Mutant('rules: penalties ignore the drafts, by definition', SAMPLE, ' + std::count(path.begin(), path.end(), id);', ';', *RULED),
    Mutant('rules: drafts counted again in the next row', PATCH, '    on_path_[size_t(id)] = 0;', '', *RULED),
    Mutant('rules: the repetition penalty forgets the prompt', PATCH, 'for (const int32_t id : state.prompt_ids())',
           'for (const int32_t id : path)', *RULED),
    Mutant('rules: an id of prompt and output is penalised twice', PATCH, 'state.output_count(id) == 0 && on_path_[size_t(id)] == 0',
           'on_path_[size_t(id)] == 0', *RULED),
    Mutant('rules: bad words look at committed tokens only', STATE, 'std::min(before, path.size())', 'size_t(0)', *RULED, True),
    Mutant('rules: bad words look at drafts only', STATE, 'if (from_committed > num_last_) return false;',
           'if (from_committed > 0) return false;', *RULED),
    Mutant('rules: bad words forget too early', STATE, 'if (num_last_ == last_tokens_.size()) {',
           'if (num_last_ == needed_) {\n    num_last_ = 0;\n  } else if (false) {', *RULED),
    Mutant('grammar: all rows of a pass under the mask of the first', PATCH, 'mask()->after(path)', 'mask()->after({})', *STRUCTURED, True),
    Mutant('grammar: nothing is given back behind guesses that were refused', MASK, 'state_.rollback(back);', '(void)back;', *STRUCTURED),
    Mutant('grammar: what is committed is not told', STATE, 'if (mask_) mask_->append(token);', '', *STRUCTURED),
    Mutant('grammar: places of guesses outlive the round', MASK, 'if (!state_.accept(token)) broken_ = true;\n  places_.assign(1, {});',
           'if (!state_.accept(token)) broken_ = true;', *STRUCTURED),
    Mutant('grammar: refused guesses are verified', STEP, KEPT_TO, 'if (false) keep_to', *STRUCTURED, True),
    Mutant('grammar: what was kept before a dead end is lost', STEP, 'verdict.next < 0 && verdict.tokens.empty()', 'verdict.next < 0',
           *STRUCTURED),
    Mutant('grammar: an end that is ignored may come early', MASK, '(here.only_ends || !keep_going_)', '(true)', *STRUCTURED),
    Mutant('grammar: the output may end anywhere', GRAMMAR, 'ends_ > 0 || complete();', 'true;', *GRAMMARS),
    Mutant('grammar: the end is not given back', GRAMMAR, 'ends_ -= ends;', '', *GRAMMARS),
    Mutant('json: raw control characters in strings', GUARD, "kEscape : byte >= 0x20 ? kInside : kRefused", 'kEscape : kInside', *GRAMMARS),
    Mutant('rules: min tokens off by one', PATCH, '< rules.min_tokens', '<= rules.min_tokens', *RULED, True),
    Mutant('rules: min tokens ignore drafts', PATCH, ' + int64_t(path.size()) < rules', ' < rules', *RULED),
    Mutant('rules: the path of a tree taken for a chain', PATCH, PARENT, 'row = row - 1', *RULED, True),
    Mutant("rules: a draft row with the history of the round's first", PATCH, 'args.first_row + int(r)', 'int(r)', *RULED),
    Mutant('rules: a bias of -100 is merely added', PATCH, 'if (bias <= kBanBias) ban(id);\n    else ', '', *RULED),
    Mutant('rules: a ban hides a NaN', PATCH, 'if (!std::isnan(row_[size_t(id)])) ', '', *RULED),
    Mutant('rules: a new prompt keeps the old output', STATE, 'output_len_ = 0, num_last_ = 0;', 'num_last_ = 0;', *RULED),
    # Sampling and what streams out.
    Mutant('sampling: ids skipped that could win', NOISE, '__builtin_expf(-needed)', '__builtin_expf(-2 * needed)', 'backend_test',
           '*CpuSample.*', True),
    Mutant('sampling: top-p cut among ids left out', 'src/backend/cpu/sampler.cpp', 'total / double(2 * row.vocab)', 'total / 16',
           'backend_test', '*CpuSample.*'),
    Mutant('log-probabilities: ties to the higher id', 'src/backend/cpu/log_probs.cpp', ': a < b;', ': a > b;', 'backend_test',
           '*LogProbs*'),
    Mutant('ranks: a bound that loses an id', 'src/backend/cpu/sampler.cpp', 'bound = std::max(bound, best[k - 1]);',
           'bound = std::max(bound, best[0]);', 'backend_test', '*CpuSample.Ranks*'),
    Mutant('ranks: shares of some of the ids', 'src/backend/cpu/sampler.cpp', 'row.cut_logit = std::numeric_limits<float>::lowest(), row',
           'row.cut_logit = best[0], row', 'backend_test', '*CpuSample.Ranks*'),
    # Caches that begin late.
    Mutant('attention: entries before the first are read', 'src/backend/cpu/attention_tree_body.h',
           'return first > rows.first ? first : rows.first;', 'return first > 0 ? first : 0;', 'backend_test', 'CpuFirstEntry*'),
    Mutant('attention: a row without entries keeps what stood there', 'src/backend/cpu/attention_body.h',
           'if (reads_nothing(rows, row)) write_nothing(item, row);', 'if (false) write_nothing(item, row);', 'backend_test',
           'CpuFirstEntry*'),
    # Products.
    Mutant('products: the residual forgotten where rows come in chunks', 'src/backend/cpu/matmul.cpp',
           'tile.accumulate = args.accumulate;', 'tile.accumulate = args.accumulate && chunks == 1;', 'backend_test',
           '*EveryEncoding.GivesARowTheSameBits*'),
    Mutant('products: high bits of the wrong inputs', 'src/backend/cpu/weights.cpp', 'else high[j / 4] |= top << 2 * (j % 4);',
           'else high[j / 4] |= top << 2 * (3 - j % 4);', 'backend_test', '*EveryEncoding.EqualsTheReference*'),
    Mutant('q5_k: the fifth bit of the next group', 'src/checkpoint/quantise.cpp', '(u8(high[i]) >> g) & 1) << 4',
           '(u8(high[i]) >> (g ^ 1)) & 1) << 4', 'checkpoint_test', 'Quantise.*'),
    Mutant('fp8: a short last block without a scale of its own', 'src/checkpoint/quantise.cpp',
           'row / s.rows * ((columns + s.columns - 1) / s.columns);', 'row / s.rows * (columns / s.columns);', 'checkpoint_test',
           'Quantise.*:Fp8*'),
    Mutant('fp8: ties away from the even code', 'src/base/half.h', '0x7ffffu + ((magnitude >> 20) & 1)', '0x80000u',
           'checkpoint_test', 'Quantise.*'),
    Mutant('fp8: scales are read and not applied', 'src/checkpoint/checkpoint.cpp',
           'tensor.scales.values = scales.values.data();', '', 'checkpoint_test', 'Fp8*'),
    Mutant('fp8: a NaN code is a number', 'src/backend/cpu/weights.cpp', 'scale = NAN;', ';', 'backend_test', 'CpuMatmul.*'),
    Mutant('stop texts: a mismatch forgets the border', STOPS, 'stop.matched = stop.border[stop.matched - 1];', 'stop.matched = 0;',
           'text_test', 'StopTexts.*', True),
    Mutant('chat: marks in contents are special tokens', 'src/text/added_tokens.cpp', 'if (special_in && token->special) {',
           'if (false) {', 'text_test', 'Renderer.*', True),
    Mutant('chat: a filter makes the request\'s text the template\'s own', 'src/text/jinja/methods.cpp',
           'self.text->runs.empty() && self.text->trusted', 'true', 'text_test', 'Renderer.*'),
    Mutant('templates: lstrip_blocks takes white space behind a tag', 'src/text/jinja/lexer.cpp',
           '(start > 0 || line_starting_)', 'true', 'text_test', 'TemplateGolden.*'),
    Mutant('stop texts: nothing is held back', STOPS, 'longest = std::max(longest, stop.matched);', 'longest = 0;', 'text_test',
           'StopTexts.*'),
    Mutant('stop texts: the shorter of two', STOPS, 'stop.text.size() > text(found_).size()', 'stop.text.size() < text(found_).size()',
           'text_test', 'StopTexts.*'),
    Mutant("a row without a draft step takes the first row's log-sum-exp", SCORED, 'if (state.noted[size_t(row)]) nearest = row;',
           'if (state.noted[size_t(row)]) continue;', *POLICIES),
    Mutant('notes of the round before serve again', SCORED, 'std::fill(state.noted.begin(), state.noted.end(), uint8_t(0));', '',
           *POLICIES),
    Mutant("a tree's path: rows by number, not by the path", SCORED, 'commit.rows[size_t(i)])] = 1;', 'i)] = 1;', *POLICIES),
    Mutant("a tree's path stays where it was in the copy", COPY, 'if (!move_from_.empty()) backend_', 'if (false) backend_', *POLICIES,
           True),
    Mutant('the kept copy keeps tentative rows', SCORED, 'if (how_.keeps && !copy_.dense(slot))', 'if (false)', *POLICIES),
    Mutant('quest: bounds of tentative rows', QUEST, 'bound(layer, slot, committed, drafts.kv);',
           'bound(layer, slot, committed + info.round_row + 1, drafts.kv);', *POLICIES, True),
    Mutant('quest: bounds of rows that may be rejected', QUEST, '(info.prompt ? info.num_rows : 0)', 'info.num_rows', *POLICIES),
    Mutant("quest: drafts do not read the drafts before them", QUEST, 'committed + info.round_row, drafts.kv);',
           'committed, drafts.kv);', *POLICIES),
    Mutant('quest: least for greatest', 'src/backend/reference/kv.cpp', 'std::max(bounds[size_t(d)], k[size_t(d)])',
           'std::min(bounds[size_t(d)], k[size_t(d)])', *POLICIES),
    Mutant('router: ties to the higher id', ROUTER, '!std::isnan(a) : a > b;', '!std::isnan(a) : a >= b;', *EXPERTS),
    Mutant('router: shares of the chosen in the order of choice', ROUTER, 'std::sort(ids.data, ids.data + k);', '', *EXPERTS),
    Mutant('router: shares normalised whoever asks', ROUTER, 'if (args.normalise || of_chosen) share', 'share', *EXPERTS),
    Mutant('router: softmax over the chosen only', ROUTER, 'of_chosen ? p[e] : p[e] / sum', 'p[e]', *EXPERTS),
    Mutant('router: the chosen are those of the greatest shares of all', ROUTER, 'of_chosen ? logits[e] : p[e]', 'p[e]', *EXPERTS),
    Mutant('router: shares of the chosen that do not sum to one', ROUTER, 'args.normalise || of_chosen', 'args.normalise', *EXPERTS),
    Mutant('router: groups by their best expert alone', ROUTER, 'second < 0 ? 0 : own[second]', '0', *EXPERTS),
    Mutant('router: experts of dropped groups', ROUTER, 'groups == 1 || kept[e / size] != 0', 'e >= 0', *EXPERTS),
    Mutant('router: the bias in the shares', ROUTER, '+= args.shares(r, slot) = p[', '+= args.shares(r, slot) = by[', *EXPERTS),
    Mutant('experts: a product without its bias', CPU_EXPERTS, 'expert.down, expert.down_bias,', 'expert.down, nullptr,', *EXPERTS),
    Mutant('gates: no limit above', 'src/backend/cpu/rows_body.h', 'const F32 g = min(limit, gate)', 'const F32 g = gate', *EXPERTS),
    Mutant('gates: no limit below', 'src/backend/cpu/rows_body.h', 'max(zero() - limit, min(limit, up))', 'min(limit, up)', *EXPERTS),
    Mutant('gates: up without the one', 'src/backend/reference/norm.cpp', '(u + 1) * (g /', 'u * (g /', *EXPERTS),
    Mutant('sink: not in the denominator', 'src/backend/reference/attention.cpp', 'double total = double(std::exp(sink - greatest));',
           'double total = 0;', *SINKS),
    Mutant('sink: not in the denominator of the vector kernels', 'src/backend/cpu/attention_body.h', 'sum = sum * rest[0] + added[0]', 'sum = sum * rest[0]',
           *SINKS),
    Mutant('sink: the one of another head', 'src/backend/cpu/attention.cpp', 'args.sinks + kv_head * group', 'args.sinks', *SINKS),
    Mutant('MXFP4: neighbours the wrong way round', 'src/checkpoint/quantise.cpp', 'const int shift = i % 2 * 4;',
           'const int shift = (1 - i % 2) * 4;', 'checkpoint_test', 'Quantise.*:SplitExperts.*'),
    Mutant('MXFP4: a code of the table', 'src/backend/cpu/matmul_body.h', '16, 18, 20, 24, 12', '16, 18, 20, 22, 12', 'backend_test',
           'Cpu/EveryEncoding.*mxfp4'),
    Mutant('gpt-oss: the up rows for the gate rows', 'src/checkpoint/split_experts.cpp', '{"gate", "up"}', '{"up", "gate"}',
           'checkpoint_test', 'SplitExperts.*'),
    Mutant('gpt-oss: windows in the other layers', 'src/checkpoint/gguf_config.cpp', '= layer % 2 == 0;', '= layer % 2 == 1;', 'golden_suite',
           '*gpt_oss_mxfp4_gguf'),
    Mutant('statistics: experts of one request alone', STEP, 'stats.experts_read += report_.experts_read;', 'stats.experts_read += 1;',
           'engine_test', 'Experts.*'),
    Mutant('experts: the share of another row', CPU_EXPERTS, 'const float share = pairs[i].share;', 'const float share = pairs[0].share;',
           *EXPERTS),
    Mutant('experts: rows that stand in order are taken for neighbours', CPU_EXPERTS, '&args.x(pairs[i].row, 0)',
           '&args.x(pairs[0].row + i, 0)', *EXPERTS),
    Mutant('experts: several rows are multiplied where the first lies', CPU_EXPERTS, 'if (rows > 1) {', 'if (rows > 2) {', *EXPERTS),
    Mutant('experts: the up rows for the gate rows', EXPERT_TENSORS, 'part == 0 ? fmt::format', 'part == 1 ? fmt::format',
           'checkpoint_test', 'ExpertTensors.*'),
    # Natively trained sparse attention: what is visible, chosen, owned.
    Mutant('nsa: scores run the other way', NSA, 'const int64_t i = r * j + k, shared', 'const int64_t i = r * j - k, shared',
           *NSA_RULES),
    Mutant('nsa: the first blocks are not forced', NSA, 'j < s.init_blocks || ', '', *NSA_RULES),
    Mutant('nsa: one local block more', NSA, 'own - j < s.local_blocks', 'own - j <= s.local_blocks', *NSA_RULES),
    Mutant('nsa: of equal scores the higher block', NSA, '!(scores[j] > scores[chosen[count - 1]])',
           '!(scores[j] >= scores[chosen[count - 1]])', *NSA_RULES),
    Mutant('nsa: keys are turned forwards', NSA, 'turn(k_.data(), turns_.data() + m * dim_, dim_, true);',
           'turn(k_.data(), turns_.data() + m * dim_, dim_, false);', *NSA_RULES),
    Mutant('nsa: offsets are not rotated', NSA, 'turn(k, start_.data(), dim_, false);', '', *NSA_RULES),
    Mutant('nsa: a window that leaves out the query', 'src/backend/reference/nsa.cpp', 'return e > position - s.window;',
           'return e >= position - s.window;', *NSA_RULES),
    Mutant('nsa: a row is seen a token late', CPU_NSA, 's.rows_of(run.last(item.first_row + r) + 1);',
           's.rows_of(run.last(item.first_row + r));', *NSA_KERNEL),
    Mutant('nsa: the window begins a key late', NSA_BODY, 'int64_t(item.query.last[row]) + 1 - item.window;',
           'int64_t(item.query.last[row]) + 2 - item.window;', *NSA_KERNEL),
    Mutant('nsa: entries behind the query are read', NSA_BODY, 'const int64_t end = item.query.last[row] + 1 - block_first;',
           'const int64_t end = item.query.last[row] + 2 - block_first;', *NSA_KERNEL),
    Mutant('nsa: owned rows are made of siblings', CPU_NSA, 'at = parents[size_t(at)], --m) entries[m]', 'at = at - 1, --m) entries[m]',
           *NSA_KERNEL),
    Mutant('nsa: a node sees rows of other branches', NSA_BODY, 'x >= 0; x = rows_.parents[x]) {\n      const int64_t place',
           'x >= 0; x = x - 1) {\n      const int64_t place', *NSA_KERNEL),
    Mutant('nsa: rows of rejected tokens stay', PASS, 'std::min(sequence.compressed_len, segment.first_position);',
           'sequence.compressed_len;', *NSA_ROUNDS),
    Mutant('nsa: rows of a tree are taken for a chain', PASS, 'segment.parents.empty() ? segment.num_rows : 0);',
           'segment.num_rows);', *NSA_ROUNDS),
    Mutant('nsa: a group shares the blocks of its first row', SHARE, 'return positions(a) < positions(b);', 'return positions(a) > positions(b);',
           'conformance_suite', 'Models/Sharing.OfOneGroup*'),
    Mutant('nsa: a row of a group loses its own block', SHARE, 'j <= own; ++j) out[count++]', 'j < own; ++j) out[count++]', 'model_test',
           'IndexSharing.*'),
    Mutant('nsa: lossy entries reach the prefix cache', 'src/engine/scheduler.cpp', ' && who.sequence.committed_len <= who.exact_len', '',
           'conformance_suite', 'Models/Sharing.LeavesNothing*'),
    Mutant('nsa: a layer reuses what nobody chose', PASS, 'call(choosing_.own, kept ? chosen', 'call(choosing_.own, !kept ? chosen',
           'conformance_suite', 'Models/Sharing.OfOneGroup*'),
    Mutant('nsa: a slot keeps the rows of another', 'src/engine/scheduler.cpp', '  sequence.compressed_len = 0;', '  ', *NSA_ROUNDS),
    Mutant('nsa: compressors are quantised', 'src/checkpoint/convert_tensors.cpp', ' || tensor.name.find(".nsa_cmp_") != tensor.name.npos',
           '', 'checkpoint_test', 'ConvertTest.*'),
    Mutant('experts: every layer has them', 'src/checkpoint/config.cpp', 's.expert_layer[layer.get<size_t>()] = 0;', '',
           'checkpoint_test', 'ExpertTensors.*'),
]


def copy_if_changed(source: Path, target: Path):
    data = source.read_bytes()
    if target.exists() and target.read_bytes() == data:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def make_scratch(scratch: Path, suites):
    """A copy of what the programs need; data and models are links. Unchanged files keep their times, so builds stay incremental."""
    wanted = set()
    files = [ROOT / 'CMakeLists.txt', ROOT / 'tools/make_tiny_models.cpp']
    for folder in ['src', 'include', 'bindings'] + [f'tests/{suite}' for suite in suites]:
        files += [f for f in (ROOT / folder).rglob('*') if f.is_file() and f.suffix in KINDS]
    files += (ROOT / 'tests').glob('*/*.h')  # suites share some
    for file in files:
        relative = file.relative_to(ROOT)
        wanted.add(scratch / relative)
        copy_if_changed(file, scratch / relative)
    for file in scratch.glob('src/**/*'):
        if file.is_file() and file not in wanted:
            file.unlink()
    for link in ['models']:
        place = scratch / link
        if not place.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(ROOT / link)


def build(scratch: Path, programs, jobs):
    command = ['ninja', '-C', str(scratch / BUILD), '-j', str(jobs), *sorted(programs)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def passes(scratch: Path, program, test_filter):
    """True if the program ran at least one test and all passed. Crashes and hangs count as failures."""
    command = [str(scratch / BUILD / program), '--gtest_filter=' + test_filter, '--gtest_brief=1', '--gtest_fail_fast']
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False, 'timed out'
    if '0 tests from 0 test' in run.stdout:
        sys.exit(f'mutate: {program} has no test that matches {test_filter}')
    return run.returncode == 0, run.stdout[-2000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ci', action='store_true', help='the marked subset only')
    parser.add_argument('--only', default='', help='mutants whose name contains this')
    parser.add_argument('--scratch', type=Path, default=ROOT / 'build' / 'mutate')
    parser.add_argument('--jobs', type=int, default=os.cpu_count() or 2)
    parser.add_argument('--release', action='store_true', help='compile as preset release does')
    parser.add_argument('--list', action='store_true', help='name them, and check that each finds its text; builds nothing')
    args = parser.parse_args()

    mutants = [m for m in MUTANTS if (m.ci or not args.ci) and args.only in m.name]
    for m in MUTANTS:  # all of them, also in --ci: a text that no longer occurs is a hole in the table
        count = (ROOT / m.file).read_text().count(m.find)
        if count != 1:
            sys.exit(f'mutate: the text of "{m.name}" occurs {count} times in {m.file}, not once; bring the table up to date:\n{m.find}')
    if args.list:
        for m in mutants:
            print(f'{"ci " if m.ci else "   "} {m.file}: {m.name}')
        return 0
    third_party = Path(os.environ.get('HUNCH_THIRD_PARTY') or ROOT / 'build/third_party')
    if not list(third_party.glob('xgrammar-*/lib/libxgrammar.a')):  # an offline machine: their tests are skipped there
        mutants = [m for m in mutants if m.program != 'structured_suite' and not m.filter.startswith('Grammars')]
    if not mutants:
        sys.exit('mutate: no such mutant')

    start = time.monotonic()
    scratch = args.scratch.resolve()
    os.environ['CCACHE_BASEDIR'] = str(scratch)  # as scripts/build sets it for the tree itself: the same relative paths
    programs = {m.program for m in mutants}
    make_scratch(scratch, sorted(p[:-len('_suite')] for p in programs if p.endswith('_suite')))
    if shutil.which('ninja') is None:
        sys.exit('mutate: ninja is not installed')
    flags = ['-DCMAKE_BUILD_TYPE=Release'] if args.release else ['-DCMAKE_BUILD_TYPE=None', '-DCMAKE_CXX_FLAGS=-O1 -w']
    subprocess.run(['cmake', '-S', str(scratch), '-B', str(scratch / BUILD), '-G', 'Ninja', *flags], check=True,
                   stdout=subprocess.DEVNULL)
    built = build(scratch, programs, args.jobs)
    if built.returncode != 0:
        sys.exit('mutate: the tree does not build\n' + built.stdout[-4000:])
    for program, test_filter in sorted({(m.program, m.filter) for m in mutants}):
        ok, output = passes(scratch, program, test_filter)
        if not ok:
            sys.exit(f'mutate: {program} {test_filter} fails without any mutation\n{output}')
    print(f'built and passed unmutated in {time.monotonic() - start:.0f} s; {len(mutants)} mutants', flush=True)

    survivors = []
    for m in mutants:
        begin = time.monotonic()
        original = (ROOT / m.file).read_text()
        target = scratch / m.file
        target.write_text(original.replace(m.find, m.replace))
        try:
            built = build(scratch, {m.program}, args.jobs)
            if built.returncode != 0:
                survivors.append(m.name + ' (does not build)')
                print(f'BROKEN    {m.name}\n{built.stdout[-3000:]}', flush=True)
                continue
            ok, _ = passes(scratch, m.program, m.filter)
        finally:
            target.write_text(original)
        if ok:
            survivors.append(m.name)
        print(f'{"SURVIVED" if ok else "killed  "}  {m.name}  [{m.program}, {time.monotonic() - begin:.0f} s]', flush=True)
    print(f'{len(mutants) - len(survivors)} of {len(mutants)} killed in {time.monotonic() - start:.0f} s')
    for name in survivors:
        print('survived: ' + name)
    return 1 if survivors else 0


if __name__ == '__main__':
    sys.exit(main())
