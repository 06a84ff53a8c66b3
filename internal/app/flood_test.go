package app

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// hostile are the requests of clients that keep their connections, and read nothing.
var hostile = []string{
	"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
	"", // says nothing
	"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Half: ",
	"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
	"GET /status HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
	"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
	"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n",
	"GET /history HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat("a", 15<<10), // and no end
	"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
}

var floodMinute = flag.Bool("flood-minute", false, "open the connections within a minute, not 15 s, and want each probe answered within a second")

// floodTime is how long the connections take.
func floodTime() time.Duration {
	if *floodMinute {
		return time.Minute
	}
	return 15 * time.Second
}

// flood is another process: it opens connections from some addresses. It keeps those that it may, as long as the test
// lasts.
func flood(t *testing.T, to string, connections, addresses int) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	kept := make([]net.Conn, min(connections, int(limit.Cur)-500))
	var mu sync.Mutex
	var all sync.WaitGroup
	const dialers = 16
	began := time.Now()
	for first := range dialers {
		all.Go(func() {
			for k := first; k < connections; k += dialers {
				<-time.After(time.Until(began.Add(floodTime() * time.Duration(k) / time.Duration(connections))))
				from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+k%addresses))}
				dialer := net.Dialer{LocalAddr: from, Timeout: time.Minute}
				conn, err := dialer.DialContext(t.Context(), "tcp", to)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, hostile[k/addresses%len(hostile)])
				mu.Lock()
				if old := kept[k%len(kept)]; old != nil {
					_ = old.Close()
				}
				kept[k%len(kept)] = conn
				mu.Unlock()
			}
		})
	}
	all.Wait()
	fmt.Println("opened")                //nolint:forbidigo // the test reads it
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
}

// inUse is the memory of this process. A part of what the collector has not taken back yet is not ours to save.
func inUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func TestProbesAnswerThoughAnybodyOpens20000Connections(t *testing.T) {
	if to := os.Getenv("FLOOD_TO"); to != "" {
		addresses, _ := strconv.Atoi(os.Getenv("FLOOD_FROM"))
		flood(t, to, race.Rounds(20_000), addresses)
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("other systems have one address of their own")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as the handler does
	for name, addresses := range map[string]int{"from the address of the probes": 1, "from 200 addresses": 200} {
		t.Run(name, func(t *testing.T) {
			// Probes and metrics share a port: that is harder.
			o := &options.Options{
				ProbesServer: true, ProbesPath: "/healthz", PrometheusServer: true, StatusPage: true,
			}
			l := newLookout("handler-1", nil, logr.Discard())
			defer l.lead(lookedAt{
				status:   func(context.Context) []overview.Node { return make([]overview.Node, 500) },
				heldBack: func() (int, string) { return 0, "" }, lastReceive: time.Now,
			})()
			metrics := telemetry.New()
			metrics.Expect(Policy(o).Possible())
			probes := newHealth()
			probes.set("start", "")
			ports, stop, err := listen(t.Context(), logr.Discard(), nil, (&App{options: o, metrics: metrics, health: probes, lookout: l}).handlers())
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			to := "127.0.0.1:" + strconv.Itoa(ports[0])
			probed(t, to, "/metrics") // what is made once is made
			debug.FreeOSMemory()
			before := inUse()

			idle := httptest.NewServer(http.NotFoundHandler())
			defer idle.Close()
			opened := floodOf(t, to, addresses)
			var most int64
			var slowest time.Duration
			late := 0 // probes in a row: a kubelet acts on the third, and the machine may stall for one
			for round := 1; ; round++ {
				for _, path := range []string{"/healthz", "/readyz"} {
					machine := timed(t, idle.URL, http.StatusNotFound)
					took := probed(t, to, path)
					if late++; took <= time.Second+4*machine {
						late = 0
					}
					if *floodMinute && took > time.Second {
						t.Errorf("%s took %s", path, took)
					}
					if late == 3 {
						t.Errorf("%s is the third in a row that is late: it took %s, where a server that nobody else asks took %s", path, took, machine)
					}
					slowest = max(slowest, took)
				}
				most = max(most, inUse()-before)
				select {
				case <-opened:
					t.Logf("%d connections, %d MiB more, %d probes, the slowest took %s", race.Rounds(20_000), most>>20, 2*round, slowest)
					if most > 20<<20 && !race.Enabled() {
						t.Errorf("%d MiB more are in use", most>>20)
					}
					probed(t, to, "/metrics") // its turn comes
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
}

// floodOf starts the flood. The channel is closed once its connections are open; they are kept until the test ends.
func floodOf(t *testing.T, to string, addresses int) <-chan struct{} {
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProbesAnswerThoughAnybodyOpens20000Connections$",
		fmt.Sprintf("-flood-minute=%t", *floodMinute))
	other.Env = append(os.Environ(), "FLOOD_TO="+to, "FLOOD_FROM="+strconv.Itoa(addresses))
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		said := make([]byte, 1<<10)
		if n, _ := out.Read(said); string(said[:n]) != "opened\n" {
			t.Errorf("the flood says %q", said[:n])
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = other.Wait()
	})
	return opened
}

func probed(t *testing.T, to, path string) time.Duration {
	return timed(t, "http://"+to+path, http.StatusOK)
}

// timed asks as a kubelet does, by a new connection, and returns how long the answer took.
func timed(t *testing.T, url string, want int) time.Duration {
	began := time.Now()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Errorf("after %s: %v", time.Since(began), err)
		return time.Since(began)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != want {
		t.Errorf("%s: %d, %v", url, response.StatusCode, err)
	}
	return time.Since(began)
}
