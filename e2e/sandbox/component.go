package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Component is one process of the control plane. Its methods may be called
// concurrently.
type Component struct {
	name  string
	dir   string // working directory, where the log is
	path  string
	args  []string
	ready func(context.Context) error // nil: running is all there is to know

	mu      sync.Mutex // held while a process is started or ended
	process *process   // nil: none was started, or it was killed
}

// process is one run of a component.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // open as long as the process is wanted
	ended chan struct{} // closed when the process has ended
	err   error         // why it ended; read it after ended is closed
}

// Start runs the component, on the port and with the state it had before, and
// returns when it is ready. It does nothing but wait when the component runs.
// When that fails, or ctx ends first, the error has the end of the component's
// log, and the process is left as it is.
func (c *Component) Start(ctx context.Context) error {
	p, err := c.run()
	if err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	if err := c.await(ctx, p, c.ready); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	return nil
}

// Kill ends the component with SIGKILL, paused or not, and returns when it has
// ended. It does nothing when the component does not run.
func (c *Component) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return
	}
	_ = c.process.cmd.Process.Kill() // fails only when it has ended by itself
	<-c.process.ended
	_ = c.process.stdin.Close()
	c.process = nil
}

// Pause stops the component (SIGSTOP), and returns when it has stopped: its connections stay open, and nothing
// answers. It is an error when the component does not run.
func (c *Component) Pause() error {
	if err := c.signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause %s: %w", c.name, err)
	}
	// On a busy machine it goes on for a while, until the thread runs that gets the signal.
	for pid := c.PID(); !hasStopped(pid); {
		<-time.After(time.Millisecond)
	}
	return nil
}

// hasStopped reports whether a process has stopped or ended. Where the system has no /proc, it is taken for stopped.
func hasStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, fields, _ := strings.Cut(string(stat), ") ") // behind the name of the program
	return err != nil || !strings.ContainsAny(fields[:min(1, len(fields))], "RSDI")
}

// Resume lets a paused component go on. It is an error when the component does
// not run, and without effect when it is not paused.
func (c *Component) Resume() error {
	if err := c.signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume %s: %w", c.name, err)
	}
	return nil
}

// PID is the component's process id, or 0 when it does not run.
func (c *Component) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	select {
	case <-c.process.ended:
		return 0
	default:
		return c.process.cmd.Process.Pid
	}
}

func (c *Component) signal(signal syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return errors.New("it does not run")
	}
	return c.process.cmd.Process.Signal(signal)
}

// run returns the running process of the component, started if there was none.
func (c *Component) run() (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		select {
		case <-c.process.ended: // by itself
			_ = c.process.stdin.Close()
		default:
			return c.process, nil
		}
	}
	log, err := os.OpenFile(c.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()                      // the process has its own
	cmd := exec.Command(c.path, c.args...) //nolint:noctx // it ends with Kill, not with who started it
	cmd.Dir = c.dir
	cmd.Env = []string{"HOME=" + c.dir} // nothing of the user's: no kubeconfig, no KWOK configuration, no proxy
	cmd.Stdout, cmd.Stderr = log, log
	// A process group of its own keeps an interrupt at the terminal from the
	// component, which has to outlive whatever the interrupted program still does
	// with it. And should this process die while the component is paused, and
	// cannot see its standard input end, the group is orphaned: the system then
	// sends SIGHUP and SIGCONT to a group with stopped members.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		if p.err = cmd.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(p.ended)
	}()
	c.process = p
	return p, nil
}

// await returns nil as soon as check does, and an error with the end of the
// log when p ends or ctx does. A nil check succeeds while p runs.
func (c *Component) await(ctx context.Context, p *process, check func(context.Context) error) error {
	for {
		var last error
		if check != nil {
			last = check(ctx)
		}
		select {
		case <-p.ended:
			return fmt.Errorf("it ended: %w\n%s", p.err, c.logTail(15))
		default:
		}
		if last == nil {
			return nil
		}
		select {
		case <-p.ended:
		case <-ctx.Done():
			return fmt.Errorf("%w; it is not ready: %w\n%s", context.Cause(ctx), last, c.logTail(15))
		case <-time.After(25 * time.Millisecond):
		}
	}
}

func (c *Component) logPath() string { return filepath.Join(c.dir, c.name+".log") }

// logTail is the last n lines the component wrote.
func (c *Component) logTail(n int) string {
	text, err := os.ReadFile(c.logPath())
	if err != nil {
		return err.Error()
	}
	return lastLines(text, n)
}
