// Karpenter is Karpenter as it is released, with its provider of simulated nodes, for
// end-to-end tests. Its nodes have no machine: the sandbox's KWOK is their kubelet.
//
//	karpenter KUBECONFIG PORT
//
// It makes Karpenter's CustomResourceDefinitions where they are missing. /readyz on PORT
// tells when it works; no other replica may run. Two things differ from Karpenter's own
// main: the nodes have the provider ids of EC2, see ec2.go, and it
// ends at once when its standard input ends. Whoever starts it holds a pipe,
// and however that process dies, Karpenter does not outlive it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func main() {
	go func() {
		// An error ends it as well: without a pipe there is nobody to live for.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: karpenter KUBECONFIG PORT")
	}
	if err := defineResources(args[1]); err != nil {
		return fmt.Errorf("define Karpenter's resources: %w", err)
	}
	// Karpenter and the library under it read their options from the environment.
	for name, value := range map[string]string{
		"KUBECONFIG":              args[1],
		"HEALTH_PROBE_PORT":       args[2],
		"METRICS_PORT":            "0", // whichever is free
		"DISABLE_LEADER_ELECTION": "true",
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	os.Args = args[:1]

	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		return fmt.Errorf("list the types of instances: %w", err)
	}
	nodes := kwok.NewCloudProvider(ctx, ec2Client{op.GetClient()}, types)
	provider := &ec2Provider{CloudProvider: nodes, client: op.GetClient()}
	priced := overlay.Decorate(provider, op.GetClient(), op.InstanceTypeStore)
	op.WithControllers(ctx, controllers.NewControllers(ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder,
		priced, provider, state.NewCluster(op.Clock, op.GetClient(), priced), op.InstanceTypeStore)...).Start(ctx)
	return nil
}

// defineResources makes the CustomResourceDefinitions that do not exist, and returns when
// the API server serves all of them.
func defineResources(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	clientset, err := apiextensions.NewForConfig(config)
	if err != nil {
		return err
	}
	client := clientset.ApiextensionsV1().CustomResourceDefinitions()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	definitions := slices.Concat(apis.CRDs, kwokapis.CRDs)
	for _, definition := range definitions {
		_, err := client.Create(ctx, definition, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	for _, definition := range definitions {
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			found, err := client.Get(ctx, definition.Name, metav1.GetOptions{})
			return err == nil && isEstablished(found), err
		})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", definition.Name, err)
		}
	}
	return nil
}

func isEstablished(definition *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range definition.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			return condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
