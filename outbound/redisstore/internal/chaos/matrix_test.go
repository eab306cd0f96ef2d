//go:build linux

package chaos

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// matrix names the tests of each fault, in this package and in the packages that handle
// the fault.
//
// allowed is the cost of the fault: how many units may leave above the limit in any
// window. Calls that are late by up to the tolerance τ of their queue may add r*τ. C is
// a capacity, r a leak rate. A bucket that is found empty costs C, and r*25 ms for the
// reservations that workers use before they know of it. Of a window C is its units, r is 0, and so
// much may go in any interval of its length.
var matrix = []struct {
	row            int
	fault, allowed string
	tests          string // their names, with spaces between them
}{
	{1, "a worker is killed while it has places, or calls under way", "0",
		"TestKill_CostsOnlyReservations TestStore_InFlightOfAProcessThatIsCutOff"},
	{2, "the server restarts, and its data is lost", "C + r*25 ms for each time",
		"TestDataLoss_CostsOneCapacity TestStore_InFlightAfterDataLoss TestStore_DataLossIsReportedOnce"},
	{3, "a failover loses the last writes", "what was charged by them: at most C, and of a leaky limit what was booked ahead of it; and r*W if both masters write for W",
		"TestFailover_CostsTheChargesThatItLost TestFailover_PlannedCostsWhatBothMastersAdmit " +
			"TestStore_ChargesOnceOnABadLine TestInFlight_SentinelsPromoteAReplica " +
			"TestInFlight_CrashOfTheServer"},
	{4, "workers are cut off from the store", "0; with a share s of its own, s*(C + r*W) in W without the store for a worker whom the others do not miss",
		"TestPartition_OneProcessFails TestPartition_OneProcessUsesItsShare " +
			"TestStore_OutageForAllExceedsNothing TestStore_OutageForOneExceedsItsShare " +
			"TestFallback_QueueUsesItsShareAndReturns TestStore_InFlightOfAProcessThatIsCutOff " +
			"TestInFlight_ProcessThatIsCutOffLosesItsSlots"},
	{5, "of a cluster there is only a minority", "0",
		"TestCluster_GoesOnAfterFaults"},
	{6, "the store is slow", "r*d, if replies to some are usually d late and to others are not",
		"TestSlowStore_DelaysCallsAndKeepsLimits TestStore_OperationEndsAtItsTimeout " +
			"TestFleet_DelayedReplyShiftsNoReservation"},
	{7, "the store hangs, and goes on", "0",
		"TestHungServer_ChargesNoAbandonedCallLater TestStore_CarriesOutNoGhost " +
			"TestStore_PassesTheConformanceTest TestStore_ChargesOnceOnABadLine " +
			"TestStore_OperationEndsAtItsTimeout TestFallback_NoCallWaitsForAHungStore " +
			"TestCluster_MasterHangsAndReplicaIsPromoted"},
	{8, "a worker stands still, and goes on", "0",
		"TestPause_ProcessDoesNotCatchUp TestTolerance_PauseOfTheProcessBunchesNoCalls " +
			"TestFleet_PauseFarFromTheStoreBunchesNoCalls TestInFlight_AProcessIsStopped"},
	{9, "a worker's wall clock is set", "0",
		"TestClock_OfTheProcessIsNotRead"},
	{10, "the server's clock jumps ahead", "r*d for a step of d, at most C, and r*25 ms for each time, and of a window C; a step back of up to 1 s and forward again, once, and a window is as much shorter",
		"TestClock_JumpCostsOneCapacity TestClock_WobbleCostsItsSwingOnce"},
	{11, "the server's clock steps back", "0",
		"TestClock_WobbleCostsItsSwingOnce TestClock_SmallStepBackIsTheLatestStamp"},
	{12, "a new master has another clock", "as 3, and C + r*25 ms if it is ahead",
		"TestClock_OfANewMaster"},
	{13, "the server does not know the script any more", "0",
		"TestStore_FlushedScriptChargesOnce TestDataLoss_CostsOneCapacity " +
			"TestFailover_CostsTheChargesThatItLost"},
	{14, "a slot moves to another master", "0",
		"TestMigration_ChargesEachCallOnce"},
	{15, "a bucket is evicted", "C + r*25 ms for each time",
		"TestDataLoss_CostsOneCapacity TestStore_DataLossIsReportedOnce"},
	{16, "the server refuses: out of memory, read-only, too few replicas, no permission", "0",
		"TestStore_TroubleIsAnErrorAndChargesNothing TestStore_ClientThatReachesNoServer"},
	{17, "the key has another type, or garbage in it", "0",
		"TestStore_CorruptDataNeitherOpensNorShutsAKey TestStore_KeyOfAnotherTypeBeginsFull"},
	{18, "keys are huge, binary or empty", "0",
		"TestBucket_OddNumbersAndKeys TestConformance"},
	{19, "calls are cancelled by the thousand", "0",
		"TestCancel_DelaysNoOtherCall TestSimulation_KeepsTheLimits"},
	{20, "a hundred thousand wait for one key", "0",
		"TestConfig_MaxLenRefusesWithTheRetryTime BenchmarkWaiters"},
	{21, "what users wrote panics", "0",
		"TestDo_RunsTheJobOnceAndEndsThePermit TestObserve_Functions " +
			"TestTransport_PanicEndsTheCall"},
	{22, "a request is refused, or cancelled, with a body", "0",
		"TestTransport_ClosesBodyOfUnsentRequest TestTransport_DoesNotChangeTheRequest " +
			"TestTransport_PassesOnWhatBaseReturns"},
	{23, "a redirect leads elsewhere, or round and round", "0",
		"TestRedirect_HostHoldsNoOther TestAgain_EachHopOfARedirect"},
	{24, "an API answers with hostile headers", "0",
		"TestSignal_HostileValuesHoldForMaxHoldAtMost TestRead_FloodsAreBounded FuzzRead"},
	{25, "costs, limits and durations mean nothing", "0",
		"TestBucket_InvalidCostChangesNothing TestLimit_InvalidIsRefusedEverywhere " +
			"TestBucket_InvalidDurationChangesNothing TestConfig_InvalidIsAnErrorOfEachCall"},
	{26, "numbers overflow", "0",
		"TestBucket_OddNumbersAndKeys TestLimit_ExtremesAdmitTheirCapacityOnce"},
	{27, "limits are changed under load", "what was in the bucket above the new C, once",
		"TestStore_RolloutOfLimits TestSetLimits_LimitWithoutNameKeepsItsLevel " +
			"TestSetLimits_ShorterWindowForgetsNoCall TestSetLimits_RefusesACostAboveTheCapacity"},
	{28, "workers have different limits for one key", "0: the newest release's limits count for all",
		"TestBucket_Releases TestChange_ManyMoveNoReservationOfTheNextSecond"},
	{29, "another version's keys lie in the server", "0",
		"TestFormat_OtherKeysAreNotTouched"},
	{30, "some cannot wait as long as others", "0",
		"TestQueue_RefusesEarly"},
	{31, "a queue is closed while calls wait", "0",
		"TestClose_RefusesAllAndReturnsReservations TestShutdown_RefusesNewCallsAndDrains"},
	{32, "the clocks of worker, store and API differ where a calendar's period ends", "0 for up to 1 s, the way of a call included; C for each time that the server's clock is set ahead over an end",
		"TestClock_SetOverTheEndOfAPeriod TestSearch_NoHistoryBreaksACalendar " +
			"TestStrictAPI_RefusesNoCallOfTheSameLimit TestPeriod_OtherPeriodsAreUntimely " +
			"TestConformance"},
}

// Each test that the matrix names exists.
func TestMatrix_NamesTestsThatExist(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	exists := map[string]bool{}
	root := filepath.Join("..", "..", "..", "..")
	require.FileExists(t, filepath.Join(root, "go.mod"))
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			exists[m[1]] = true
		}
		return err
	}))
	for i, m := range matrix {
		require.Equal(t, i+1, m.row)
		for name := range strings.SplitSeq(m.tests, " ") {
			require.True(t, exists[name], "row %d, %s: there is no %s", m.row, m.fault, name)
		}
	}
}
