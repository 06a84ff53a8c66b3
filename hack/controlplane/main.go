// Controlplane is a Kubernetes control plane in one binary, for end-to-end
// tests: the components of k8s.io/kubernetes, unchanged, beside an embedded
// etcd. They share most of their code, so one binary links once and is in
// memory once.
//
//	controlplane kube-apiserver|kube-controller-manager|kube-scheduler FLAGS...
//	controlplane etcd DATA_DIR SOCKET
//
// go.mod has the version of Kubernetes that tests use by default. Each other one has a
// module file beside it, such as 1.35.mod for go build -modfile, with the releases that
// the go.mod of this Kubernetes names.
//
// It ends at once when its standard input ends: whoever starts it holds a pipe,
// and however that process dies, nothing of the control plane outlives it.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	os.Exit(run())
}

func run() int {
	commands := map[string]func() *cobra.Command{
		"etcd":                    etcdCommand,
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler ARGS...")
		return 2
	}
	go func() {
		// An error ends it as well: without a pipe there is nobody to live for.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	name := os.Args[1]
	os.Args = os.Args[1:] // the components take their name from the command line, as hyperkube's did
	return cli.Run(commands[name]())
}

func etcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:  "etcd DATA_DIR SOCKET",
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return serveEtcd(args[0], args[1])
		},
	}
}

// serveEtcd runs a cluster of one on Unix sockets, so that any number of them
// run side by side and nobody without access to the directory reads secrets.
// socket is a name in the working directory, because etcd takes no paths, and
// ends in a colon and digits, because etcd takes no address without a port.
func serveEtcd(dir, socket string) error {
	client := []url.URL{{Scheme: "unix", Host: socket}}
	peer := []url.URL{{Scheme: "unix", Host: "peer-" + socket}} // no peer will ever call
	cfg := embed.NewConfig()
	cfg.Name = "sandbox"
	cfg.Dir = dir
	cfg.LogLevel = "warn"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true                                                   // the data is scratch: it has to survive kill -9, but not the machine
	cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration // 0 here: it would warn of every request
	cfg.EnableGRPCGateway = false
	cfg.QuotaBackendBytes = 8 << 30 // the default of 2 GiB would turn a long load test read-only
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer e.Close()
	select {
	case err := <-e.Err():
		return fmt.Errorf("serve etcd: %w", err)
	case <-e.Server.StopNotify():
		return errors.New("etcd stopped by itself")
	}
}
