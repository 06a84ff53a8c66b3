package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A plugin that fetches credentials, and asks for a second factor, is not to be called off.
func TestCtrlCPressedAgainEndsTheProgramWhateverItIsAt(t *testing.T) {
	program, err := exec.LookPath(programName)
	if err != nil {
		t.Fatal(err)
	}
	started, config := filepath.Join(t.TempDir(), "started"), filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
			"args": ["-c", "touch %s; exec sleep 600"]}}}]}`, started)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "what-if", "--node=a", "--release=none", "--kubeconfig="+config)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }() // the plugin
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for pressed := 0; ; {
		select {
		case <-tick.C:
			if _, err := os.Stat(started); err == nil {
				_ = cmd.Process.Signal(os.Interrupt)
				pressed++
			}
		case <-ended:
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !status.Signaled() || status.Signal() != syscall.SIGINT || pressed < 2 {
				t.Errorf("it ended with %v after %d times", cmd.ProcessState, pressed)
			}
			return
		}
	}
}
