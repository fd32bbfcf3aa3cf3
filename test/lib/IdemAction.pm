# A PostgreSQL node that has idem_action, and what the TAP tests do to it.
#
#   my $node = IdemAction->node('main', conf => "idem_action.naptime = '1s'");
#   my $claim = $node->claim(key => 'evt-1', intent => 'send-reply', params => { to => 'a@b' });
#   $node->call('complete_action', action_id => $claim->{action_id}, claim_id => $claim->{claim_id});
#
#   my $session = $node->session;
#   $session->query_safe('BEGIN');
#   $node->send($session, "SELECT ...");    # does not wait for the answer
#   $node->wait_until_blocked($session);
#   my $answer = $session->query('');       # that of the statement sent

package IdemAction;

use strict;
use warnings;

use File::Basename qw(dirname);
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);	# more would hide methods of Cluster
use Test::More;

use parent -norequire, 'PostgreSQL::Test::Cluster';

my $json = JSON::PP->new->allow_nonref->canonical->boolean_values(0, 1);

# A started node with the extension in database postgres.  Parameters: conf,
# more settings; init, a list for Cluster's init; extension => 0 to create none.
sub node
{
	my ($class, $name, %param) = @_;
	my $self = $class->new($name);

	$self->init(@{ $param{init} // [] });
	$self->append_conf('postgresql.conf', slurp_file(dirname(__FILE__) . '/../regress.conf'));
	$self->append_conf('postgresql.conf', 'restart_after_crash = on');
	$self->append_conf('postgresql.conf', $param{conf}) if defined $param{conf};
	$self->start;
	$self->safe_psql('postgres', 'CREATE EXTENSION idem_action') if $param{extension} // 1;
	return $self;
}

# The arguments of a call in named notation.  A hash becomes JSON, a list an
# array, undef NULL.
sub arguments
{
	my %arg = @_;
	return join ', ', map { "$_ => " . literal($arg{$_}) } sort keys %arg;
}

sub literal
{
	my ($value) = @_;

	return 'NULL' unless defined $value;
	if (ref $value eq 'ARRAY')
	{
		# as in {"a","b"}: the quoting of JSON strings is that of array elements
		$value = '{' . join(',', map { defined $_ ? $json->encode(text($_)) : 'NULL' } @$value) . '}';
	}
	$value = text($value);
	$value =~ s/'/''/g;
	return "'$value'";
}

sub text
{
	my ($value) = @_;
	return ref $value ? $json->encode($value) : "$value";
}

# Calls a function of schema idem in database postgres.  Returns its rows as
# hashes, or its values; in scalar context the first.
sub call
{
	my ($self, $function, %arg) = @_;
	my @row = map { $json->decode($_) }
	  split /\n/, $self->safe_psql('postgres', "SELECT to_json(r) FROM idem.$function(" . arguments(%arg) . ') r');

	return wantarray ? @row : $row[0];
}

sub claim
{
	my ($self, %arg) = @_;
	return scalar $self->call('claim_action', %arg);
}

# The same as call, as SQL for a session, and its answer read again.
sub call_sql
{
	my ($self, $function, %arg) = @_;
	return "SELECT to_json(r) FROM idem.$function(" . arguments(%arg) . ') r';
}

sub decode
{
	my ($self, $answer) = @_;
	my @row = map { $json->decode($_) } grep { /\S/ } split /\n/, $answer;

	return wantarray ? @row : $row[0];
}

sub call_in
{
	my ($self, $session, $function, %arg) = @_;
	return $self->decode($session->query_safe($self->call_sql($function, %arg)));
}

# What has ended its lease without a word: as if the time had passed.
sub lapse
{
	my ($self, $key) = @_;
	$self->safe_psql('postgres',
		"UPDATE idem.idem_actions SET lease_until = clock_timestamp() - interval '1 second' "
		  . "WHERE state = 'in_progress' AND key = " . literal($key));
	return;
}

# Lets time pass, for tests of nothing but time: leases, and what runs beside.
sub pass_time
{
	my ($self, $seconds) = @_;
	my $then = $self->safe_psql('postgres', "SELECT clock_timestamp() + interval '$seconds seconds'");

	$self->poll_query_until('postgres', "SELECT clock_timestamp() >= '$then'") or die "time stands still";
	return;
}

# A rule about which a test needs to say only what it is about.
sub rule
{
	my ($self, $intent, %arg) = @_;
	return scalar $self->call(
		'define_rule',
		intent => $intent,
		unique_by => 'the key of the test',
		resolved_by => 'the test',
		%arg);
}

# SQL that adds finished actions of intent "aged", PREFIX-1 and so on, whose
# retention was over a day ago.  Conditions on the number i, contents and key,
# tell which are kept for another day.
sub aged
{
	my ($rows, $prefix, %keeps) = @_;
	my ($contents, $key) = map { $_ // 'false' } @keeps{qw(contents key)};

	return qq{
		INSERT INTO idem.idem_actions (action_id, created_at, revision, generation, attempt, lost, failures,
			priority, uncertain, uncertain_before, marked, begun, verifying, approved, cancel_requested, purged, ruled,
			first_claimed_at, claimed_at, claim_id, ended_by, finished_at, purge_after, forget_after,
			state, scope, intent, key, params, result)
		SELECT idem.action_id('$prefix-' || i, 'aged'), t, 2, 1, 1, 0, 0,
			0, false, false, false, false, false, false, false, false, false,
			t, t, gen_random_uuid(), 'succeeded', t,
			CASE WHEN $contents THEN now() + '1 day' ELSE t END, CASE WHEN $key THEN now() + '1 day' ELSE t END,
			'completed', '', 'aged', '$prefix-' || i, '{"to": "a"}', '{"ok": true}'
		FROM generate_series(1, $rows) i, (SELECT now() - interval '1 day') AS s (t);
	};
}

# SQL that adds so many lines of history with contents to every $each-th of them
sub aged_past
{
	my ($rows, $prefix, $each, $lines) = @_;

	return qq{
		INSERT INTO idem.idem_events (at, action_id, generation, attempt, intent, event, role, content)
		SELECT now(), idem.action_id('$prefix-' || i, 'aged'), 1, 1, 'aged', 'failed', 'somebody', '{"draft": 1}'
		FROM generate_series($each, $rows, $each) i, generate_series(1, $lines);
	};
}

# The SQLSTATE with which a statement fails; '' where it does not.
sub sqlstate
{
	my ($self, $sql, $database) = @_;
	my (undef, undef, $stderr) = $self->psql($database // 'postgres', "\\set VERBOSITY sqlstate\n$sql");

	return $stderr =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5})$/m ? $1 : '';
}

# A psql of its own that goes on after errors; end it with quit.
sub session
{
	my ($self, %param) = @_;
	my $session = $self->background_psql($param{dbname} // 'postgres', on_error_stop => 0, %param);

	$session->{backend} = $session->query_safe('SELECT pg_backend_pid()');
	return $session;
}

# Sends a statement and returns at once; the next query gets its answer too.
sub send
{
	my ($self, $session, $sql) = @_;
	$session->query_until(qr/sent\n/, "\\echo sent\n$sql;\n");
	return;
}

# Returns once the session waits for a lock.
sub wait_until_blocked
{
	my ($self, $session) = @_;
	$self->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $session->{backend}")
	  or die "session did not block";
	return;
}

# The client dies without a word, as when its machine loses power.  Its backend
# goes on with what it was sent, and notices when it answers.
sub cut
{
	my ($self, $session) = @_;

	kill 'KILL', map { $_->{PID} // () } @{ $session->{run}{KIDS} };
	$session->{run}->finish;
	return;
}

sub wait_until_gone
{
	my ($self, $session) = @_;
	$self->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $session->{backend}")
	  or die "backend did not end";
	return;
}

sub kill_client
{
	my ($self, $session) = @_;

	$self->cut($session);
	$self->wait_until_gone($session);
	return;
}

# A process of the server dies (a backend, the worker): the server recovers
# from the crash.  Returns when it answers again.
sub kill_process
{
	my ($self, $pid) = @_;
	my $offset = -s $self->logfile;

	kill 'KILL', $pid or die "no process $pid";

	# not by a query: IPC::Run dies of a psql that ends before it has read it
	$self->wait_for_log(qr/all server processes terminated; reinitializing.*database system is ready to accept/s, $offset);
	return;
}

# The machine stops and starts: nothing is written on the way down.
sub crash
{
	my ($self) = @_;
	$self->stop('immediate');
	$self->start;
	return;
}

1;
