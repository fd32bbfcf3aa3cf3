--
-- The states of an action, cell by cell: the table of docs/states.md.
--
-- A fixture is an action brought into a state, by calls where there is one; a
-- cell is a call on it.  What a cell says is all that may change: the answer,
-- what becomes of the row ("unchanged": not even a new version), and how many
-- lines the history has gained.  Every cell also checks what holds everywhere:
-- the answer tells the row as it is now, revision grows with every change but
-- extend, a grant is whole, and the same report again is answered the same
-- and writes nothing (A5).
--
-- begin_effect refuses to run where its error could be caught, so these calls
-- go through a connection of their own.
--
CREATE EXTENSION dblink;
CREATE SCHEMA parity;
SET search_path = parity, public;
SET timezone = 'UTC';

--
-- Fixtures.  In each one "earlier" is a claim that was released; the words
-- are those of parity.step() below.  Leases and delays are long enough for the
-- slowest machine.
--
CREATE TABLE fixture (
	name	text PRIMARY KEY,
	rule	text,		-- settings other than the defaults
	steps	text
);
INSERT INTO fixture VALUES
('none', '', ''),

('pending: never claimed', '', 'enqueue'),
('pending: released', '', 'earlier, claim, release'),
('pending: failed clean', '', 'earlier, claim, fail none, due'),
('pending: lost before it began', 'marks_effect => true', 'earlier, claim, lapse, worker sees nothing happened'),
('pending: lost before it began, evidence since', 'marks_effect => true', 'earlier, claim, lapse, worker sees nothing happened, stranger fails'),
('pending: not happened, says a person', '', 'earlier, claim, fail unknown, not happened'),
('pending, uncertain: reported unknown', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, due'),
('pending, uncertain: lost', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, lapse, worker sees doubt'),
('pending, uncertain: released', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, due, claim, release'),
('pending, uncertain: rule became review', 'on_uncertain => ''repeat''', 'earlier, claim, fail unknown, due, rule is review'),

('not due: failed clean', '', 'earlier, claim, fail none'),
('not due, uncertain: reported unknown', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown'),
('not due, uncertain: lost, settling', 'settle => ''1 day''', 'rule is verify, earlier, claim, lapse, other claims'),

('unapproved: never claimed', '', 'enqueue, rule wants approval'),
('unapproved: released', '', 'earlier, claim, release, rule wants approval'),
('unapproved: lost before it began', 'marks_effect => true', 'earlier, claim, lapse, worker sees nothing happened, rule wants approval'),
('unapproved, not due, uncertain', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, rule wants approval'),

('held', '', 'earlier, claim'),
('held, uncertain', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, due, claim'),
('held, marked', 'marks_effect => true', 'earlier, claim'),
('held, marked, begun', 'marks_effect => true', 'earlier, claim, begin'),
('held, cancel requested', '', 'earlier, claim, cancel'),
('held, uncertain, cancel requested', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, due, claim, cancel'),
('held, marked, cancel requested', 'marks_effect => true', 'earlier, claim, cancel'),
('held, marked, begun, cancel requested', 'marks_effect => true', 'earlier, claim, begin, cancel'),

('lapsed', '', 'earlier, claim, lapse'),
('lapsed, repeat', 'on_uncertain => ''repeat''', 'earlier, claim, lapse'),
('lapsed, retry', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, lapse'),
('lapsed, uncertain', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, due, claim, lapse'),
('lapsed, marked', 'marks_effect => true', 'earlier, claim, lapse'),
('lapsed, marked, begun', 'marks_effect => true', 'earlier, claim, begin, lapse'),
('lapsed, cancel requested', '', 'earlier, claim, cancel, lapse'),
('lapsed, uncertain, cancel requested', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, fail unknown, due, claim, cancel, lapse'),
('lapsed, marked, cancel requested', 'marks_effect => true', 'earlier, claim, cancel, lapse'),

('completed r1', '', 'earlier, claim, complete r1'),
('completed r1, late', '', 'earlier, claim, lapse, complete r1'),
('completed r1, cancel requested', '', 'earlier, claim, cancel, complete r1'),
('completed r1, double_result', '', 'earlier, claim, complete r1, earlier completes r2'),
('completed, no ref', '', 'earlier, claim, complete'),
('completed, no ref, double_result', '', 'earlier, claim, complete, earlier completes r2'),

('failed', '', 'earlier, claim, fail refused'),

('lease_expired', '', 'earlier, claim, lapse, other claims'),
('lease_expired, marked, begun', 'marks_effect => true', 'earlier, claim, begin, lapse, other claims'),
('lease_expired, cancel requested', '', 'earlier, claim, cancel, lapse, other claims'),
('lease_expired, uncertain before', 'on_uncertain => ''repeat''', 'earlier, claim, fail unknown, due, claim, lapse, rule is review, other claims'),
('lease_expired, uncertain before, cancel requested', 'on_uncertain => ''repeat''', 'earlier, claim, fail unknown, due, claim, cancel, lapse, other claims'),
('outcome_unknown', '', 'earlier, claim, fail unknown'),
('outcome_unknown, a person decided since', 'on_uncertain => ''retry'', provider_window => ''10 days''', 'earlier, claim, lapse, worker sees doubt, cancel'),
('attempts_exhausted', 'on_uncertain => ''repeat'', max_attempts => 1', 'earlier, claim, lapse, other claims'),
('failures_exhausted', 'max_failures => 1', 'earlier, claim, fail none'),
('provider_window_over', 'on_uncertain => ''retry'', provider_window => ''2 days''', 'earlier, claim, two days pass, lapse, other claims'),
('late_result r2', '', 'earlier, claim, earlier completes r2'),
('late_result r1 of the last', '', 'earlier, claim, release, complete r1'),
('double_result r2', '', 'earlier, claim, earlier completes r2, stranger completes r3'),

('cancelled: released', '', 'earlier, claim, cancel, release'),
('cancelled: lost before it began', 'marks_effect => true', 'earlier, claim, cancel, lapse, other claims'),

('forgotten: completed r1', '', 'earlier, claim, complete r1, forget'),
('forgotten: failed', '', 'earlier, claim, fail refused, forget'),
('forgotten: cancelled', '', 'earlier, claim, cancel, release, forget'),
('not forgotten: double_result', '', 'earlier, claim, complete r1, earlier completes r2, forget'),

('generation 2, pending', '', 'earlier, claim, fail refused, rerun'),
('generation 2, held', '', 'earlier, claim, fail refused, rerun, claim'),
('generation 2, lapsed', '', 'earlier, claim, fail refused, rerun, claim, lapse'),
('generation 2, completed r1', '', 'earlier, claim, fail refused, rerun, claim, complete r1'),
('generation 2, failed', '', 'earlier, claim, fail refused, rerun, claim, fail refused'),
('generation 2, outcome_unknown', '', 'earlier, claim, fail refused, rerun, claim, fail unknown'),
('generation 2, cancelled', '', 'earlier, claim, fail refused, rerun, claim, cancel, release');

--
-- Cells: every fixture of a list with every call of a list
--
CREATE TABLE expected (
	fixtures	text,		-- separated by |
	calls		text,
	answer		text,		-- outcome of a claim, accepted or not of a report, SQLSTATE
	becomes		text,		-- what may not be seen in the row: ?
	history		text		-- lines gained
);
INSERT INTO expected VALUES
--
-- none
--
('none', 'claim', 'claimed', 'new: in_progress', '0'),
('none', 'stranger: complete r1|stranger: complete|stranger: fail none|stranger: fail refused|stranger: fail unknown|stranger: release', 'IA016', 'unchanged', '0'),
('none', 'stranger: begin|stranger: begin, lease|stranger: extend', 'IA016', 'unchanged', '0'),

--
-- pending, due
--
('pending: never claimed|pending: released|pending: failed clean|pending: lost before it began|pending: lost before it began, evidence since',
	'claim', 'claimed', 'in_progress, attempt +1', '0'),
('pending: not happened, says a person', 'claim', 'claimed', 'in_progress, attempt +1', '0'),
('pending, uncertain: reported unknown|pending, uncertain: lost|pending, uncertain: released',
	'claim', 'claimed', 'in_progress, attempt +1', '0'),
('pending, uncertain: rule became review', 'claim', 'needs_attention', 'needs_attention(outcome_unknown)', '?'),

('pending: not happened, says a person', 'last: fail unknown', 'accepted', 'unchanged', '0'),
('pending: not happened, says a person', 'last: fail none|last: fail refused|last: release', 'not accepted', 'unchanged', '1'),
('pending: not happened, says a person', 'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),

-- nobody has reported or decided since the hand-out
('pending: lost before it began', 'last: complete r1', 'accepted', 'completed, ref r1', '1'),
('pending: lost before it began', 'last: complete', 'accepted', 'completed', '1'),
('pending, uncertain: lost', 'last: complete r1', 'accepted', 'completed, certain, ref r1', '1'),
('pending, uncertain: lost', 'last: complete', 'accepted', 'completed, certain', '1'),
-- somebody has, if only by release or evidence
('pending: released|pending: failed clean|pending: not happened, says a person|pending: lost before it began, evidence since|pending, uncertain: reported unknown|pending, uncertain: released|pending, uncertain: rule became review',
	'last: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('pending: released|pending: failed clean|pending: not happened, says a person|pending: lost before it began, evidence since|pending, uncertain: reported unknown|pending, uncertain: released|pending, uncertain: rule became review',
	'last: complete', 'not accepted', 'needs_attention(late_result)', '1'),

('pending: released|pending, uncertain: released', 'last: fail none|last: fail refused|last: fail unknown', 'not accepted', 'unchanged', '1'),
('pending: released|pending, uncertain: released', 'last: release', 'accepted', 'unchanged', '0'),
('pending: failed clean', 'last: fail none', 'accepted', 'unchanged', '0'),
('pending: failed clean', 'last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('pending, uncertain: reported unknown|pending, uncertain: rule became review', 'last: fail unknown', 'accepted', 'unchanged', '0'),
('pending, uncertain: reported unknown|pending, uncertain: rule became review', 'last: fail none|last: fail refused|last: release', 'not accepted', 'unchanged', '1'),
('pending: lost before it began|pending: lost before it began, evidence since|pending, uncertain: lost',
	'last: fail none|last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('pending: released|pending: failed clean|pending: lost before it began|pending: lost before it began, evidence since|pending, uncertain: reported unknown|pending, uncertain: lost|pending, uncertain: released|pending, uncertain: rule became review',
	'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),

--
-- pending, not due
--
('not due: failed clean|not due, uncertain: reported unknown|not due, uncertain: lost, settling', 'claim', 'not_due', 'unchanged', '0'),
('not due, uncertain: lost, settling', 'last: complete r1', 'accepted', 'completed, certain, ref r1', '1'),
('not due, uncertain: lost, settling', 'last: complete', 'accepted', 'completed, certain', '1'),
('not due: failed clean|not due, uncertain: reported unknown', 'last: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('not due: failed clean|not due, uncertain: reported unknown', 'last: complete', 'not accepted', 'needs_attention(late_result)', '1'),
('not due: failed clean', 'last: fail none', 'accepted', 'unchanged', '0'),
('not due: failed clean', 'last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('not due, uncertain: reported unknown', 'last: fail unknown', 'accepted', 'unchanged', '0'),
('not due, uncertain: reported unknown', 'last: fail none|last: fail refused|last: release', 'not accepted', 'unchanged', '1'),
('not due, uncertain: lost, settling', 'last: fail none|last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('not due: failed clean|not due, uncertain: reported unknown|not due, uncertain: lost, settling', 'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),

--
-- pending, unapproved: before not_due, before the doubt list
--
('unapproved: never claimed|unapproved: released|unapproved: lost before it began|unapproved, not due, uncertain', 'claim', 'awaiting_approval', 'unchanged', '0'),
('unapproved: lost before it began', 'last: complete r1', 'accepted', 'completed, ref r1', '1'),
('unapproved: lost before it began', 'last: complete', 'accepted', 'completed', '1'),
('unapproved: released|unapproved, not due, uncertain', 'last: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('unapproved: released|unapproved, not due, uncertain', 'last: complete', 'not accepted', 'needs_attention(late_result)', '1'),
('unapproved: released', 'last: fail none|last: fail refused|last: fail unknown', 'not accepted', 'unchanged', '1'),
('unapproved: released', 'last: release', 'accepted', 'unchanged', '0'),
('unapproved, not due, uncertain', 'last: fail unknown', 'accepted', 'unchanged', '0'),
('unapproved, not due, uncertain', 'last: fail none|last: fail refused|last: release', 'not accepted', 'unchanged', '1'),
('unapproved: lost before it began', 'last: fail none|last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('unapproved: released|unapproved: lost before it began|unapproved, not due, uncertain', 'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),

-- pending of any kind, by an earlier claim
('pending: released|pending: failed clean|pending: not happened, says a person|pending: lost before it began|pending: lost before it began, evidence since|pending, uncertain: reported unknown|pending, uncertain: lost|pending, uncertain: released|pending, uncertain: rule became review|not due: failed clean|not due, uncertain: reported unknown|not due, uncertain: lost, settling|unapproved: released|unapproved: lost before it began|unapproved, not due, uncertain',
	'earlier: complete r1|stranger: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('pending: released|pending: failed clean|pending: not happened, says a person|pending: lost before it began|pending: lost before it began, evidence since|pending, uncertain: reported unknown|pending, uncertain: lost|pending, uncertain: released|pending, uncertain: rule became review|not due: failed clean|not due, uncertain: reported unknown|not due, uncertain: lost, settling|unapproved: released|unapproved: lost before it began|unapproved, not due, uncertain',
	'earlier: complete', 'not accepted', 'needs_attention(late_result)', '1'),
('pending: never claimed|unapproved: never claimed', 'stranger: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('pending: never claimed|unapproved: never claimed', 'stranger: complete', 'not accepted', 'needs_attention(late_result)', '1'),
('pending: never claimed|unapproved: never claimed', 'stranger: fail none|stranger: fail refused|stranger: fail unknown|stranger: release', 'not accepted', 'unchanged', '1'),
('pending: never claimed|unapproved: never claimed', 'stranger: begin|stranger: begin, lease|stranger: extend', 'IA002', 'unchanged', '0'),

--
-- in progress, lease valid
--
('held|held, uncertain|held, marked|held, marked, begun|held, cancel requested|held, uncertain, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested',
	'claim', 'in_progress', 'unchanged', '0'),
('held|held, marked|held, marked, begun|held, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested',
	'last: complete r1', 'accepted', 'completed, ref r1', '0'),
('held|held, marked|held, marked, begun|held, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested',
	'last: complete', 'accepted', 'completed', '0'),
('held, uncertain|held, uncertain, cancel requested', 'last: complete r1', 'accepted', 'completed, certain, ref r1', '0'),
('held, uncertain|held, uncertain, cancel requested', 'last: complete', 'accepted', 'completed, certain', '0'),

('held|held, marked|held, marked, begun', 'last: fail none', 'accepted', 'pending, failures +1, due later', '1'),
('held|held, marked|held, marked, begun', 'last: fail refused', 'accepted', 'failed', '1'),
('held|held, marked, begun', 'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown), lost +1, uncertain', '1'),
('held, marked', 'last: fail unknown', 'accepted', 'pending, lost +1, due now', '1'),
('held|held, marked', 'last: release', 'accepted', 'pending, due now', '1'),
('held, marked, begun', 'last: release', 'not accepted', 'unchanged', '0'),

('held, uncertain', 'last: fail none', 'accepted', 'pending, failures +1, due later', '1'),
('held, uncertain', 'last: fail refused', 'accepted', 'needs_attention(outcome_unknown)', '1'),
('held, uncertain', 'last: fail unknown', 'accepted', 'pending, lost +1, due later', '1'),
('held, uncertain', 'last: release', 'accepted', 'pending, due now', '1'),

-- cancel_requested goes before the fail rules
('held, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested', 'last: fail none', 'accepted', 'cancelled, failures +1', '1'),
('held, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested', 'last: fail refused', 'accepted', 'failed', '1'),
('held, cancel requested|held, marked, begun, cancel requested', 'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown), lost +1, uncertain', '1'),
('held, marked, cancel requested', 'last: fail unknown', 'accepted', 'cancelled, lost +1', '1'),
('held, cancel requested|held, marked, cancel requested', 'last: release', 'accepted', 'cancelled', '1'),
('held, marked, begun, cancel requested', 'last: release', 'not accepted', 'unchanged', '0'),
('held, uncertain, cancel requested', 'last: fail none', 'accepted', 'needs_attention(outcome_unknown), failures +1', '1'),
('held, uncertain, cancel requested', 'last: fail refused|last: release', 'accepted', 'needs_attention(outcome_unknown)', '1'),
('held, uncertain, cancel requested', 'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown), lost +1', '1'),

('held|held, uncertain|held, marked', 'last: begin|last: begin, lease', 'ok', 'in_progress, begun', '0'),
('held, marked, begun', 'last: begin', 'ok', 'unchanged', '0'),
('held, marked, begun', 'last: begin, lease', 'ok', 'in_progress', '0'),
('held|held, uncertain|held, marked|held, marked, begun', 'last: extend', 'ok', 'in_progress', '0'),
('held, cancel requested|held, uncertain, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested',
	'last: begin|last: begin, lease|last: extend', 'IA004', 'unchanged', '0'),

--
-- in progress, lease over
--
('lapsed|lapsed, marked, begun|lapsed, cancel requested', 'claim', 'needs_attention', 'needs_attention(lease_expired), lost +1, uncertain', '1'),
('lapsed, repeat|lapsed, retry', 'claim', 'claimed', 'in_progress, attempt +1, lost +1, uncertain', '1'),
('lapsed, uncertain|lapsed, marked', 'claim', 'claimed', 'in_progress, attempt +1, lost +1', '1'),
('lapsed, uncertain, cancel requested', 'claim', 'needs_attention', 'needs_attention(lease_expired), lost +1', '1'),
('lapsed, marked, cancel requested', 'claim', 'cancelled', 'cancelled, lost +1', '1'),

('lapsed|lapsed, repeat|lapsed, retry|lapsed, marked|lapsed, marked, begun|lapsed, cancel requested|lapsed, marked, cancel requested',
	'last: complete r1', 'accepted', 'completed, ref r1', '1'),
('lapsed|lapsed, repeat|lapsed, retry|lapsed, marked|lapsed, marked, begun|lapsed, cancel requested|lapsed, marked, cancel requested',
	'last: complete', 'accepted', 'completed', '1'),
('lapsed, uncertain|lapsed, uncertain, cancel requested', 'last: complete r1', 'accepted', 'completed, certain, ref r1', '1'),
('lapsed, uncertain|lapsed, uncertain, cancel requested', 'last: complete', 'accepted', 'completed, certain', '1'),

-- as if valid
('lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked|lapsed, marked, begun', 'last: fail none', 'accepted', 'pending, failures +1, due later', '1'),
('lapsed|lapsed, repeat|lapsed, retry|lapsed, marked|lapsed, marked, begun', 'last: fail refused', 'accepted', 'failed', '1'),
('lapsed|lapsed, marked, begun', 'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown), lost +1, uncertain', '1'),
('lapsed, repeat|lapsed, retry', 'last: fail unknown', 'accepted', 'pending, lost +1, uncertain, due later', '1'),
('lapsed, marked', 'last: fail unknown', 'accepted', 'pending, lost +1, due now', '1'),
('lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked', 'last: release', 'accepted', 'pending, due now', '1'),
('lapsed, marked, begun', 'last: release', 'not accepted', 'unchanged', '0'),
('lapsed, uncertain', 'last: fail refused', 'accepted', 'needs_attention(outcome_unknown)', '1'),
('lapsed, uncertain', 'last: fail unknown', 'accepted', 'pending, lost +1, due later', '1'),
('lapsed, cancel requested|lapsed, marked, cancel requested', 'last: fail none', 'accepted', 'cancelled, failures +1', '1'),
('lapsed, cancel requested|lapsed, marked, cancel requested', 'last: fail refused', 'accepted', 'failed', '1'),
('lapsed, cancel requested', 'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown), lost +1, uncertain', '1'),
('lapsed, marked, cancel requested', 'last: fail unknown', 'accepted', 'cancelled, lost +1', '1'),
('lapsed, cancel requested|lapsed, marked, cancel requested', 'last: release', 'accepted', 'cancelled', '1'),
('lapsed, uncertain, cancel requested', 'last: fail none', 'accepted', 'needs_attention(outcome_unknown), failures +1', '1'),
('lapsed, uncertain, cancel requested', 'last: fail refused|last: release', 'accepted', 'needs_attention(outcome_unknown)', '1'),
('lapsed, uncertain, cancel requested', 'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown), lost +1', '1'),

-- over but unjudged: extend, and begin with a lease, renew it
('lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked|lapsed, marked, begun', 'last: begin', 'IA002', 'unchanged', '0'),
('lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked', 'last: begin, lease', 'ok', 'in_progress, begun', '0'),
('lapsed, marked, begun', 'last: begin, lease', 'ok', 'in_progress', '0'),
('lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked|lapsed, marked, begun', 'last: extend', 'ok', 'in_progress', '0'),
('lapsed, cancel requested|lapsed, uncertain, cancel requested|lapsed, marked, cancel requested', 'last: begin|last: begin, lease|last: extend', 'IA004', 'unchanged', '0'),

-- in progress of any kind, by an earlier claim: the one that held has a line of its own
('held|held, uncertain|held, marked|held, marked, begun|held, cancel requested|held, uncertain, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested|lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked|lapsed, marked, begun|lapsed, cancel requested|lapsed, uncertain, cancel requested|lapsed, marked, cancel requested',
	'earlier: complete r1|stranger: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '2'),
('held|held, uncertain|held, marked|held, marked, begun|held, cancel requested|held, uncertain, cancel requested|held, marked, cancel requested|held, marked, begun, cancel requested|lapsed|lapsed, repeat|lapsed, retry|lapsed, uncertain|lapsed, marked|lapsed, marked, begun|lapsed, cancel requested|lapsed, uncertain, cancel requested|lapsed, marked, cancel requested',
	'earlier: complete', 'not accepted', 'needs_attention(late_result)', '2'),

--
-- completed
--
('completed r1|completed r1, late|completed r1, cancel requested|completed r1, double_result|completed, no ref|completed, no ref, double_result|not forgotten: double_result',
	'claim', 'completed', 'unchanged', '0'),
('completed r1|completed r1, late|completed r1, cancel requested|completed r1, double_result|forgotten: completed r1|not forgotten: double_result',
	'last: complete r1|last: complete', 'accepted', 'unchanged', '0'),
('completed r1|completed r1, late|completed r1, cancel requested|forgotten: completed r1', 'last: complete r2', 'not accepted', 'completed(double_result)', '1'),
('completed, no ref', 'last: complete', 'accepted', 'unchanged', '0'),
('completed, no ref', 'last: complete r1', 'accepted', 'completed, ref r1', '?'),
('completed, no ref, double_result', 'last: complete', 'accepted', 'unchanged', '0'),
('completed, no ref, double_result', 'last: complete r1', 'accepted', 'completed(double_result), ref r1', '?'),
('completed r1, double_result|not forgotten: double_result', 'last: complete r2', 'not accepted', '?', '1'),
('completed r1|completed r1, late|completed r1, cancel requested|completed r1, double_result|completed, no ref|completed, no ref, double_result|forgotten: completed r1|not forgotten: double_result',
	'last: fail none|last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('completed r1|completed r1, late|completed r1, cancel requested|completed r1, double_result|completed, no ref|completed, no ref, double_result|forgotten: completed r1|not forgotten: double_result',
	'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),
('completed r1|completed r1, late|completed r1, cancel requested|completed r1, double_result|forgotten: completed r1|not forgotten: double_result',
	'earlier: complete r1|stranger: complete r1', 'accepted', 'unchanged', '?'),
('completed r1|completed r1, late|completed r1, cancel requested|forgotten: completed r1', 'earlier: complete r2|earlier: complete', 'not accepted', 'completed(double_result)', '1'),
('completed, no ref', 'earlier: complete r1|stranger: complete r1|earlier: complete', 'not accepted', 'completed(double_result)', '1'),
('completed r1, double_result|completed, no ref, double_result|not forgotten: double_result', 'earlier: complete r2', 'not accepted', 'unchanged', '0'),
('completed r1, double_result|completed, no ref, double_result|not forgotten: double_result', 'earlier: complete', 'not accepted', '?', '1'),
('completed, no ref, double_result', 'earlier: complete r1|stranger: complete r1', 'not accepted', '?', '1'),

--
-- failed
--
('failed', 'claim', 'failed', 'unchanged', '0'),
('failed|forgotten: failed', 'last: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('failed|forgotten: failed', 'last: complete', 'not accepted', 'needs_attention(late_result)', '1'),
('failed|forgotten: failed', 'last: fail refused', 'accepted', 'unchanged', '0'),
('failed|forgotten: failed', 'last: fail none|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('failed|forgotten: failed', 'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),
('failed|forgotten: failed', 'earlier: complete r1|stranger: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('failed|forgotten: failed', 'earlier: complete', 'not accepted', 'needs_attention(late_result)', '1'),

--
-- needs_attention
--
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested|outcome_unknown|outcome_unknown, a person decided since|attempts_exhausted|failures_exhausted|provider_window_over|late_result r2|late_result r1 of the last|double_result r2',
	'claim', 'needs_attention', 'unchanged', '0'),
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested|outcome_unknown|attempts_exhausted|provider_window_over',
	'last: complete r1', 'accepted', 'completed, certain, ref r1', '1'),
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested|outcome_unknown|attempts_exhausted|provider_window_over',
	'last: complete', 'accepted', 'completed, certain', '1'),
('failures_exhausted', 'last: complete r1', 'accepted', 'completed, ref r1', '1'),
('failures_exhausted', 'last: complete', 'accepted', 'completed', '1'),

('outcome_unknown, a person decided since', 'last: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('outcome_unknown, a person decided since', 'last: complete', 'not accepted', 'needs_attention(late_result)', '1'),

-- lease_expired: as if valid, judged and counted as lost once
('lease_expired|lease_expired, marked, begun', 'last: fail none', 'accepted', 'pending, failures +1, certain, due later', '1'),
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested', 'last: fail refused', 'accepted', 'failed, certain', '1'),
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested',
	'last: fail unknown', 'accepted', 'needs_attention(outcome_unknown)', '1'),
('lease_expired', 'last: release', 'accepted', 'pending, certain, due now', '1'),
('lease_expired, marked, begun', 'last: release', 'not accepted', 'unchanged', '0'),
('lease_expired, cancel requested', 'last: fail none', 'accepted', 'cancelled, failures +1, certain', '1'),
('lease_expired, cancel requested', 'last: release', 'accepted', 'cancelled, certain', '1'),
('lease_expired, uncertain before|lease_expired, uncertain before, cancel requested', 'last: fail none', 'accepted', 'needs_attention(outcome_unknown), failures +1', '1'),
('lease_expired, uncertain before|lease_expired, uncertain before, cancel requested', 'last: fail refused', 'accepted', 'needs_attention(outcome_unknown)', '1'),
('lease_expired, uncertain before', 'last: release', 'accepted', 'pending, due now', '1'),
('lease_expired, uncertain before, cancel requested', 'last: release', 'accepted', 'needs_attention(outcome_unknown)', '1'),

-- other reasons: evidence
('outcome_unknown', 'last: fail unknown', 'accepted', 'unchanged', '0'),
('outcome_unknown', 'last: fail none|last: fail refused|last: release', 'not accepted', 'unchanged', '1'),
('failures_exhausted', 'last: fail none', 'accepted', 'unchanged', '0'),
('failures_exhausted', 'last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('outcome_unknown, a person decided since|attempts_exhausted|provider_window_over|late_result r2|double_result r2',
	'last: fail none|last: fail refused|last: fail unknown|last: release', 'not accepted', 'unchanged', '1'),
('late_result r1 of the last', 'last: fail none|last: fail refused|last: fail unknown', 'not accepted', 'unchanged', '1'),
('late_result r1 of the last', 'last: release', 'accepted', 'unchanged', '0'),
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested|outcome_unknown|outcome_unknown, a person decided since|attempts_exhausted|failures_exhausted|provider_window_over|late_result r2|late_result r1 of the last|double_result r2',
	'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),

-- a success is known already
('late_result r2', 'last: complete r2', 'accepted', 'completed', '1'),
('late_result r2', 'last: complete r1|last: complete', 'not accepted', 'needs_attention(double_result)', '1'),
('late_result r1 of the last', 'last: complete r1', 'not accepted', 'unchanged', '0'),
('late_result r1 of the last', 'last: complete r2|last: complete', 'not accepted', 'needs_attention(double_result)', '1'),
('double_result r2', 'last: complete r2', 'accepted', 'completed(double_result)', '1'),
('double_result r2', 'last: complete r1|last: complete', 'not accepted', '?', '1'),
('late_result r2|double_result r2', 'earlier: complete r2', 'not accepted', 'unchanged', '0'),
('late_result r2', 'earlier: complete r1|stranger: complete r1', 'not accepted', 'needs_attention(double_result)', '1'),
('late_result r2', 'stranger: complete r2', 'not accepted', '?', '1'),
('late_result r2|late_result r1 of the last|double_result r2', 'earlier: complete', 'not accepted', '?', '1'),
('late_result r1 of the last', 'earlier: complete r1|stranger: complete r1', 'not accepted', '?', '1'),
('late_result r1 of the last', 'earlier: complete r2', 'not accepted', 'needs_attention(double_result)', '1'),
('double_result r2', 'earlier: complete r1|stranger: complete r1|stranger: complete r2', 'not accepted', '?', '1'),

('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested|outcome_unknown|outcome_unknown, a person decided since|attempts_exhausted|failures_exhausted|provider_window_over',
	'earlier: complete r1|stranger: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('lease_expired|lease_expired, marked, begun|lease_expired, cancel requested|lease_expired, uncertain before|lease_expired, uncertain before, cancel requested|outcome_unknown|outcome_unknown, a person decided since|attempts_exhausted|failures_exhausted|provider_window_over',
	'earlier: complete', 'not accepted', 'needs_attention(late_result)', '1'),

--
-- cancelled
--
('cancelled: released|cancelled: lost before it began', 'claim', 'cancelled', 'unchanged', '0'),
('cancelled: released|cancelled: lost before it began|forgotten: cancelled', 'last: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('cancelled: released|cancelled: lost before it began|forgotten: cancelled', 'last: complete', 'not accepted', 'needs_attention(late_result)', '1'),
('cancelled: released|cancelled: lost before it began|forgotten: cancelled', 'last: fail none|last: fail refused|last: fail unknown', 'not accepted', 'unchanged', '1'),
('cancelled: released|forgotten: cancelled', 'last: release', 'accepted', 'unchanged', '0'),
('cancelled: lost before it began', 'last: release', 'not accepted', 'unchanged', '1'),
('cancelled: released|cancelled: lost before it began|forgotten: cancelled', 'last: begin|last: begin, lease|last: extend', 'IA002', 'unchanged', '0'),
('cancelled: released|cancelled: lost before it began|forgotten: cancelled', 'earlier: complete r1|stranger: complete r1', 'not accepted', 'needs_attention(late_result), ref r1', '1'),
('cancelled: released|cancelled: lost before it began|forgotten: cancelled', 'earlier: complete', 'not accepted', 'needs_attention(late_result)', '1'),

--
-- forgotten: as if the row were gone
--
('forgotten: completed r1|forgotten: failed|forgotten: cancelled', 'claim', 'claimed', 'new: in_progress', 'gone'),

--
-- by a claim of an earlier generation: never changes state
--
('generation 2, pending|generation 2, held|generation 2, lapsed|generation 2, completed r1|generation 2, failed|generation 2, outcome_unknown|generation 2, cancelled',
	'earlier: complete r1|earlier: complete r2|earlier: complete|earlier: fail none|earlier: fail refused|earlier: fail unknown', 'not accepted', 'unchanged', '1'),
('generation 2, pending|generation 2, held|generation 2, lapsed|generation 2, completed r1|generation 2, failed|generation 2, outcome_unknown|generation 2, cancelled',
	'earlier: release', 'accepted', 'unchanged', '0'),
('generation 2, pending|generation 2, held|generation 2, lapsed|generation 2, completed r1|generation 2, failed|generation 2, outcome_unknown|generation 2, cancelled',
	'earlier: begin|earlier: begin, lease|earlier: extend', 'IA002', 'unchanged', '0');

-- by an earlier claim, in every state: its own report again is answered as it
-- was, anything but a success is evidence, and it may not go on
INSERT INTO expected
SELECT name, calls, answer, 'unchanged', history
FROM fixture, (VALUES
	('earlier: release', 'accepted', '0'),
	('earlier: fail none|earlier: fail refused|earlier: fail unknown|stranger: fail none|stranger: fail refused|stranger: fail unknown|stranger: release', 'not accepted', '1'),
	('earlier: begin|earlier: begin, lease|earlier: extend|stranger: begin|stranger: begin, lease|stranger: extend', 'IA002', '0')) AS v (calls, answer, history)
WHERE steps LIKE '%earlier%' AND steps NOT LIKE '%rerun%';

CREATE TABLE cell AS
SELECT row_number() OVER () AS n, fixture, call, via, answer, becomes, history,
	NULL::uuid AS action_id, NULL::uuid AS last, NULL::uuid AS earlier
FROM expected, regexp_split_to_table(fixtures, '\|') AS fixture, regexp_split_to_table(calls, '\|') AS call,
	unnest('{single,batch}'::text[]) AS via
WHERE via = 'single' OR call ~ 'claim$|complete|extend';

SELECT plan((SELECT count(*) FROM cell)::int + 9);

SELECT is_empty('SELECT fixture FROM cell EXCEPT SELECT name FROM fixture', 'every cell has its fixture');
SELECT is_empty('SELECT fixture, call FROM cell GROUP BY fixture, call, via HAVING count(*) > 1', 'no cell is written twice');
SELECT is_empty($$
	SELECT name, call FROM fixture, unnest(ARRAY['claim',
		'last: complete r1', 'last: complete', 'last: fail none', 'last: fail refused', 'last: fail unknown', 'last: release',
		'last: begin', 'last: begin, lease', 'last: extend',
		'earlier: complete r1', 'earlier: complete', 'earlier: fail none', 'earlier: fail refused', 'earlier: fail unknown',
		'earlier: release', 'earlier: begin', 'earlier: begin, lease', 'earlier: extend',
		'stranger: complete r1', 'stranger: fail none', 'stranger: fail unknown', 'stranger: release', 'stranger: begin', 'stranger: extend']) AS call
	WHERE name NOT LIKE 'generation%'
		AND (steps LIKE '%earlier%' OR call ~ '^claim|^stranger')
	EXCEPT SELECT fixture, call FROM cell
	$$, 'every fixture has every call');

--
-- Building
--
CREATE FUNCTION row_of(id uuid) RETURNS idem.idem_actions LANGUAGE sql AS
	'SELECT * FROM idem.idem_actions WHERE action_id = id';

/* a row written by the superuser: what is due stands in the queue as well */
CREATE FUNCTION set_row(id uuid, changes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	a	idem.idem_actions := row_of(id);
BEGIN
	a := jsonb_populate_record(a, changes);
	DELETE FROM idem.idem_actions WHERE action_id = id;
	INSERT INTO idem.idem_actions SELECT (a).*;
	DELETE FROM idem.idem_queue WHERE action_id = id;
	INSERT INTO idem.idem_queue (intent, priority, due_at, action_id) SELECT a.intent, a.priority, a.due_at, id WHERE a.due_at IS NOT NULL;
END
$$;

CREATE PROCEDURE step(step text, fixture text, key text, INOUT last uuid, INOUT earlier uuid) LANGUAGE plpgsql AS $$
DECLARE
	id		uuid := idem.action_id(key, fixture);
	a		idem.idem_actions := row_of(id);
	c		idem.claim;
	now		timestamptz := clock_timestamp();
	ref		text := substring(step FROM 'r[0-9]$');
BEGIN
	CASE
		WHEN step = ANY ('{claim,earlier,"other claims"}') THEN
			c := idem.claim_action(key, fixture, '{"to": "a"}', '"draft"', worker => 'worker ' || coalesce(a.attempt, 0) + 1);
			IF c.granted <> (step <> 'other claims') THEN
				RAISE 'fixture "%": % was answered %', fixture, step, c.outcome;
			END IF;
			IF step = 'earlier' THEN
				PERFORM idem.release_action(id, c.claim_id, 'not today');
				earlier := c.claim_id;
			ELSIF step = 'claim' THEN
				last := c.claim_id;
			END IF;
		WHEN step = 'release' THEN PERFORM idem.release_action(id, last, 'not today');
		WHEN step LIKE 'fail %' THEN PERFORM idem.fail_action(id, last, 'error', split_part(step, ' ', 2));
		WHEN step LIKE 'complete%' THEN PERFORM idem.complete_action(id, last, ref, '{"from": "last"}');
		WHEN step LIKE 'earlier completes%' THEN PERFORM idem.complete_action(id, earlier, ref, '{"from": "earlier"}');
		WHEN step LIKE 'stranger completes%' THEN PERFORM idem.complete_action(id, md5('other')::uuid, ref, '{"from": "stranger"}');
		WHEN step = 'stranger fails' THEN PERFORM idem.fail_action(id, md5('other')::uuid, 'error');
		WHEN step = 'begin' THEN PERFORM idem.begin_effect(id, last);
		WHEN step = 'due' THEN PERFORM set_row(id, jsonb_build_object('due_at', now - interval '1 s'));
		WHEN step = 'cancel' THEN PERFORM idem.cancel_action(id, 'changed my mind');
		WHEN step = 'not happened' THEN PERFORM idem.resolve_action(id, 'not_happened', 'looked', a.revision);
		WHEN step = 'lapse' THEN
			PERFORM set_row(id, jsonb_build_object('claimed_at', a.claimed_at - interval '10 min', 'lease_until', now - interval '1 s',
				'due_at', CASE WHEN a.due_at IS NOT NULL THEN now - interval '1 s' END));
		WHEN step = 'two days pass' THEN
			PERFORM set_row(id, jsonb_build_object('first_claimed_at', a.first_claimed_at - interval '2 days'));
		WHEN step LIKE 'worker sees %' THEN
			/* what a pass in the background makes of a lease that is over */
			PERFORM set_row(id, jsonb_build_object('state', 'pending', 'lease_until', NULL, 'due_at', now - interval '1 s',
				'lost', a.lost + 1, 'uncertain', step = 'worker sees doubt', 'ended_by', 'expired',
				'doubt_until', CASE WHEN step = 'worker sees doubt' THEN a.lease_until END, 'revision', a.revision + 1));
			INSERT INTO idem.idem_events (at, action_id, generation, attempt, during, claim_id, intent, event, role)
			VALUES (now, id, a.generation, a.attempt, a.attempt, last, fixture, 'expired', 'postgres');
		WHEN step = 'enqueue' THEN PERFORM idem.enqueue_action(key, fixture, '{"to": "a"}', '"draft"');
		WHEN step = 'rerun' THEN PERFORM idem.rerun_action(id, 'again', a.revision);
		WHEN step = 'forget' THEN PERFORM set_row(id, jsonb_build_object('forget_after', now - interval '1 s'));
		WHEN step LIKE 'rule is %' THEN
			UPDATE idem.idem_rules SET on_uncertain = split_part(step, ' ', 3) WHERE intent = fixture;
		WHEN step = 'rule wants approval' THEN
			UPDATE idem.idem_rules SET requires_approval = true WHERE intent = fixture;
	END CASE;
END
$$;

DO $$
DECLARE
	f		fixture;
	c		cell;
	s		text;
BEGIN
	FOR f IN SELECT * FROM fixture LOOP
		FOR c IN SELECT * FROM cell WHERE fixture = f.name LOOP
			EXECUTE format('SELECT idem.define_rule(%L, ''event'', ''the team'', lease => ''1 day'', retry_delay => ''1 hour''%s)', f.name, ', ' || nullif(f.rule, ''));
			FOREACH s IN ARRAY array_remove(regexp_split_to_array(f.steps, ', '), '') LOOP
				CALL step(s, f.name, c.n::text, c.last, c.earlier);
				COMMIT;		/* as each call is a transaction of its own */
			END LOOP;
			UPDATE cell SET action_id = idem.action_id(c.n::text, f.name), last = c.last, earlier = c.earlier
			WHERE n = c.n;
		END LOOP;
	END LOOP;
END
$$;

--
-- Calling
--
SELECT dblink_connect('caller', format('host=%s port=%s dbname=%s user=%s', current_setting('unix_socket_directories'),
	current_setting('port'), current_database(), current_user)) = 'OK' AS connected \gset

/* the answer, and the row that it came as */
CREATE FUNCTION call(c cell, OUT answer text, OUT detail jsonb) LANGUAGE plpgsql AS $$
DECLARE
	what	text := regexp_replace(c.call, '^.*: ', '');
	who		text := split_part(c.call, ': ', 1);
	claim	uuid := CASE who WHEN 'last' THEN c.last WHEN 'earlier' THEN c.earlier ELSE md5('stranger')::uuid END;
	ref		text := substring(what FROM 'r[0-9]$');
	result	jsonb := jsonb_build_object('from', who);
	s		double precision;
	a		idem.claim;
	r		idem.report;
BEGIN
	IF what = 'claim' THEN
		IF c.via = 'batch' THEN
			SELECT * INTO STRICT a FROM idem.claim_actions(c.fixture, ARRAY[c.n::text], ARRAY['{"to": "a"}'::jsonb], worker => 'claimer', in_transaction => true);
		ELSE
			a := idem.claim_action(c.n::text, c.fixture, '{"to": "a"}', worker => 'claimer', in_transaction => true);
		END IF;
		answer := a.outcome;
		detail := to_jsonb(a);
	ELSIF what LIKE 'begin%' THEN
		SELECT * INTO s FROM dblink('caller', format('SELECT idem.begin_effect(%L, %L, lease => %L)',
			c.action_id, claim, CASE WHEN what LIKE '%lease' THEN '2 days' END)) AS d (s double precision);
		answer := CASE WHEN s / 86400 BETWEEN CASE WHEN what LIKE '%lease' THEN 1.9 ELSE 0.9 END AND CASE WHEN what LIKE '%lease' THEN 2 ELSE 1 END THEN 'ok' ELSE s::text END;
	ELSIF what LIKE 'extend%' THEN
		IF c.via = 'batch' THEN
			SELECT seconds_left, CASE WHEN problem <> '' AND seconds_left IS NULL THEN 'problem' END INTO STRICT s, answer
			FROM idem.extend_claims(ARRAY[c.action_id], ARRAY[claim]);
		ELSE
			s := idem.extend_claim(c.action_id, claim);
		END IF;
		answer := coalesce(answer, CASE WHEN s / 86400 BETWEEN 0.9 AND 1 THEN 'ok' END, s::text);
	ELSE
		IF c.via = 'batch' THEN
			SELECT * INTO STRICT r FROM idem.complete_actions(ARRAY[c.action_id], ARRAY[claim], ARRAY[ref], ARRAY[result]);
		ELSIF what LIKE 'complete%' THEN
			r := idem.complete_action(c.action_id, claim, ref, result);
		ELSIF what LIKE 'fail%' THEN
			r := idem.fail_action(c.action_id, claim, 'error', split_part(what, ' ', 2));
		ELSE
			r := idem.release_action(c.action_id, claim, 'not today');
		END IF;
		answer := CASE WHEN r.accepted THEN 'accepted' ELSE 'not accepted' END;
		detail := to_jsonb(r);
	END IF;
EXCEPTION WHEN OTHERS THEN
	answer := SQLSTATE;
END
$$;

CREATE FUNCTION version_of(id uuid) RETURNS text LANGUAGE sql AS
	'SELECT ctid::text FROM idem.idem_actions WHERE action_id = id';
CREATE FUNCTION lines_of(id uuid) RETURNS bigint LANGUAGE sql AS
	'SELECT count(*) FROM idem.idem_events WHERE action_id = $1';

/* how a row differs from what it was */
CREATE FUNCTION difference(was idem.idem_actions, a idem.idem_actions) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(', ',
		a.state || coalesce('(' || a.reason || ')', ''),
		'attempt +' || nullif(a.attempt - was.attempt, 0),
		'lost +' || nullif(a.lost - was.lost, 0),
		'failures +' || nullif(a.failures - was.failures, 0),
		'generation +' || nullif(a.generation - was.generation, 0),
		CASE WHEN a.uncertain <> was.uncertain THEN CASE WHEN a.uncertain THEN 'uncertain' ELSE 'certain' END END,
		CASE WHEN a.begun AND NOT was.begun THEN 'begun' END,
		CASE WHEN a.cancel_requested <> was.cancel_requested THEN 'cancel_requested ' || a.cancel_requested END,
		CASE WHEN a.external_ref IS DISTINCT FROM was.external_ref THEN 'ref ' || coalesce(a.external_ref, 'gone') END,
		CASE WHEN a.state = 'pending' THEN CASE WHEN a.due_at <= clock_timestamp() THEN 'due now' ELSE 'due later' END END)
$$;

/* what holds in every cell; says what does not */
CREATE FUNCTION broken(c cell, was idem.idem_actions, a idem.idem_actions, rewritten boolean, answer text, detail jsonb)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	p		idem.claim;
	r		idem.report;
	bad		text[] := '{}';
BEGIN
	IF rewritten AND was.action_id IS NOT NULL AND a.created_at = was.created_at
		AND a.revision <> was.revision + (c.call NOT LIKE '%extend')::int THEN
		bad := bad || format('revision went from %s to %s', was.revision, a.revision);
	END IF;
	IF (SELECT array_agg(ROW (q.intent, q.priority, q.due_at)::text) FROM idem.idem_queue q WHERE q.action_id = c.action_id)
		IS DISTINCT FROM (CASE WHEN a.due_at IS NOT NULL THEN ARRAY[ROW (a.intent, a.priority, a.due_at)::text] END) THEN
		bad := bad || 'the queue is out of step'::text;
	END IF;
	IF detail ? 'accepted' THEN
		r := jsonb_populate_record(NULL::idem.report, detail);
		IF (r.action_id, r.state, r.revision) IS DISTINCT FROM (c.action_id, a.state, a.revision) THEN
			bad := bad || format('the report says %s', r);
		END IF;
		IF NOT r.accepted AND coalesce(r.note, '') = '' THEN
			bad := bad || 'not accepted, and no note says why'::text;
		END IF;
		IF a.cancel_requested AND r.accepted AND rewritten AND a.state = 'completed' AND r.note !~ 'too late' THEN
			bad := bad || format('a cancel that came too late is noted as "%s"', r.note);
		END IF;
	ELSIF detail IS NOT NULL THEN
		p := jsonb_populate_record(NULL::idem.claim, detail);
		IF (p.action_id, p.scope, p.intent, p.key, p.state, p.revision, p.attempt, p.generation, p.uncertain, p.lease_until,
			p.external_ref, p.result, p.error, p.params, p.draft, p.worker, p.claimed_at, p.first_seen, p.finished_at)
			IS DISTINCT FROM
			(a.action_id, a.scope, a.intent, a.key, a.state, a.revision, a.attempt, a.generation, a.uncertain, a.lease_until,
			a.external_ref, a.result, a.error, a.params, a.draft, a.worker, a.claimed_at, a.created_at, a.finished_at) THEN
			bad := bad || format('the claim says %s', detail);
		END IF;
		IF p.reason IS DISTINCT FROM a.reason THEN
			bad := bad || format('the reason is told as %s', p.reason);
		END IF;
		IF p.granted <> (answer = 'claimed') THEN
			bad := bad || format('granted is %s', p.granted);
		END IF;
		IF p.repeat <> (was.action_id IS NOT NULL AND was.created_at = a.created_at) THEN
			bad := bad || format('repeat is %s', p.repeat);
		END IF;
		IF (p.retry_after IS NOT NULL) <> (answer = ANY ('{in_progress,contended,not_due,verify}')) OR p.retry_after < 0 THEN
			bad := bad || format('retry_after is %s', p.retry_after);
		END IF;
		IF p.claim_id IS DISTINCT FROM (CASE WHEN p.granted THEN a.claim_id END) THEN
			bad := bad || 'claim_id is shown to the wrong one'::text;
		END IF;
		IF p.granted AND (a.claim_id IN (was.claim_id, c.last, c.earlier) OR a.begun OR a.verifying OR a.ended_by IS NOT NULL
			OR a.uncertain_before <> a.uncertain OR a.worker <> 'claimer'
			OR a.lease_until <> a.claimed_at + interval '1 day' OR a.claimed_at < clock_timestamp() - interval '10 min'
			OR a.first_claimed_at <> coalesce(CASE WHEN a.created_at = was.created_at THEN was.first_claimed_at END, a.claimed_at)
			OR a.marked <> (SELECT marks_effect FROM idem.idem_rules WHERE intent = c.fixture)) THEN
			bad := bad || format('the grant is %s', a);
		END IF;
		IF a.created_at IS DISTINCT FROM was.created_at
			AND (a.revision, a.generation, a.attempt, a.lost, a.failures, a.uncertain) <> (1, 1, 1, 0, 0, false) THEN
			bad := bad || format('the new row is %s', a);
		END IF;
	END IF;
	RETURN bad;
END
$$;

/* the notes of a report and of the same report again */
CREATE TABLE told (fixture text, call text, via text, note text, note_again text);

CREATE FUNCTION observe(c cell) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	was		idem.idem_actions := row_of(c.action_id);
	version	text := version_of(c.action_id);
	lines	bigint := lines_of(c.action_id);
	a		idem.idem_actions;
	answer	text;
	detail	jsonb;
	again	text;
	detail2	jsonb;
	becomes	text;
	history	text;
	bad		text[];
BEGIN
	SELECT * INTO answer, detail FROM call(c);
	a := row_of(c.action_id);
	IF version IS NOT DISTINCT FROM version_of(c.action_id) THEN
		becomes := 'unchanged';
	ELSIF a.created_at IS DISTINCT FROM was.created_at THEN
		becomes := 'new: ' || a.state;
	ELSE
		becomes := difference(was, a);
	END IF;
	history := CASE WHEN lines > 0 AND lines_of(c.action_id) = 0 THEN 'gone' ELSE (lines_of(c.action_id) - lines)::text END;
	bad := CASE WHEN a.action_id IS NOT NULL
		THEN broken(c, was, a, version IS DISTINCT FROM version_of(c.action_id), answer, detail) END;

	/* the line of the history speaks of the claim that reported */
	IF history = '1' AND detail ? 'accepted' AND NOT EXISTS (
		SELECT FROM idem.idem_events e
		WHERE e.action_id = c.action_id AND id = (SELECT max(id) FROM idem.idem_events WHERE action_id = c.action_id)
			AND e.claim_id = CASE split_part(c.call, ':', 1) WHEN 'last' THEN c.last WHEN 'earlier' THEN c.earlier ELSE md5('stranger')::uuid END
			AND e.attempt = CASE split_part(c.call, ':', 1) WHEN 'last' THEN was.attempt WHEN 'earlier' THEN 1 ELSE 0 END
			AND e.role = current_user AND e.at > clock_timestamp() - interval '10 min') THEN
		bad := bad || 'the history does not say whose report it was'::text;
	END IF;

	/* again */
	version := version_of(c.action_id);
	lines := lines_of(c.action_id);
	SELECT * INTO again, detail2 FROM call(c);
	IF again <> (CASE WHEN answer = 'claimed' THEN 'in_progress' ELSE answer END) THEN
		bad := bad || format('again it is answered %s', again);
	ELSIF detail2 ? 'accepted' AND detail2 - 'note' <> detail - 'note' THEN
		bad := bad || format('again it is answered %s after %s', detail2, detail);
	END IF;
	INSERT INTO told VALUES (c.fixture, c.call, c.via, detail->>'note', detail2->>'note');
	IF answer <> 'ok' OR c.call LIKE '%begin' THEN
		IF version IS DISTINCT FROM version_of(c.action_id) THEN
			bad := bad || 'again it writes the row'::text;
		END IF;
	END IF;
	IF lines <> lines_of(c.action_id) THEN
		bad := bad || 'again it is recorded'::text;
	END IF;

	RETURN concat_ws(' / ', answer,
		CASE WHEN c.becomes = '?' THEN '?' ELSE becomes END,
		CASE WHEN c.history = '?' THEN '?' ELSE history END,
		'BUT ' || nullif(array_to_string(bad, '; '), ''));
END
$$;

/* in a batch, what would be an error is a row */
CREATE FUNCTION wanted(c cell) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' / ',
		CASE WHEN c.via = 'single' OR c.answer NOT LIKE 'IA%' THEN c.answer
			WHEN c.call LIKE '%extend' THEN 'problem' ELSE 'not accepted' END,
		c.becomes, c.history)
$$;

SELECT is(observe(c), wanted(c), format('%s: %s%s', fixture, call, CASE WHEN via = 'batch' THEN ' (batch)' END))
FROM cell c ORDER BY n;

/* the answers have come from claims, here they come from one statement: what
 * is at rest costs not even a transaction id */
SELECT is(array_agg(DISTINCT n) FILTER (WHERE outcome <> answer OR wrote), NULL, 'a claim of what is at rest takes no transaction id')
FROM (
	SELECT n, answer, (idem.claim_action(n::text, fixture, '{"to": "a"}')).outcome, pg_current_xact_id_if_assigned() IS NOT NULL AS wrote
	FROM cell WHERE call = 'claim' AND becomes = 'unchanged') AS s;
SELECT is(array_agg(DISTINCT n) FILTER (WHERE outcome <> answer OR wrote), NULL, 'nor do many')
FROM (
	SELECT n, answer, (idem.claim_actions(fixture, ARRAY[n::text], ARRAY['{"to": "a"}'::jsonb])).outcome, pg_current_xact_id_if_assigned() IS NOT NULL AS wrote
	FROM cell WHERE call = 'claim' AND becomes = 'unchanged') AS s;
SELECT is(array_agg(DISTINCT n) FILTER (WHERE outcome <> CASE answer WHEN 'not_due' THEN 'pending' ELSE answer END OR wrote), NULL,
	'find_action says the same, only that nothing is asked of it, and reads only')
FROM (
	SELECT n, answer, (idem.find_action(n::text, fixture)).outcome, pg_current_xact_id_if_assigned() IS NOT NULL AS wrote
	FROM cell WHERE call = 'claim' AND becomes = 'unchanged') AS s;

SELECT is_empty('SELECT * FROM told WHERE note IS DISTINCT FROM note_again LIMIT 5',
	'A5: the same report again is told the same note');
SELECT is_empty('SELECT a.*, idem.violated_invariant(a) FROM idem.idem_actions a WHERE idem.violated_invariant(a) IS NOT NULL',
	'no call has left a row that breaks an invariant');
SELECT set_eq('SELECT intent, priority, due_at, action_id FROM idem.idem_queue',
	$$SELECT intent, priority, due_at, action_id FROM idem.idem_actions WHERE due_at IS NOT NULL$$,
	'the queue holds what has a due_at and nothing else');

SELECT * FROM finish();
